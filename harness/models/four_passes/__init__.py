"""Gradients by the weights and their derivatives by the images, written out instead of left to autograd."""
