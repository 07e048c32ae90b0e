"""What is not about privacy: files, configuration, jobs, statistics, untrusted bytes, isolation."""
