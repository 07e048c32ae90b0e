"""Workers that compute jobs: processes of this machine, and clusters."""
