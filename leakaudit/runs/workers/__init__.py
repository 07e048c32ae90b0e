"""Workers that compute jobs: processes of this machine, or of a cluster."""
