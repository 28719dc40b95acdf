"""`elastic adopt`: takes a cluster's jobs over from the Training Operator, and gives them back."""
