"""What settings may be: ranges, what a machine can do in a day, where tensors are computed."""
