"""Small programs that containers find where their image would have brought them. Each is a file of its own and imports nothing of ours."""
