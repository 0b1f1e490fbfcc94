"""What every endpoint over HTTP shares, whichever protocol it speaks."""
