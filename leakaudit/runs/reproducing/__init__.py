"""Published figures and tables, run again from the plans that the package ships."""
