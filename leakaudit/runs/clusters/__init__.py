"""Workers elsewhere: joblib's backends, and clusters of dask.distributed and ray."""
