"""What every HTTP endpoint shares, whatever its protocol: which hosts and origins are served."""
