"""What each event does to what the machine knows: they record and place. What follows is decided in rounds."""
