"""Small programs that containers find in places where their image would have them. Each is a single file and imports nothing of ours."""
