"""What every HTTP endpoint shares, whatever its protocol: hosts, origins, and who may wait."""
