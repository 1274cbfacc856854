"""What is said of content that is not what it should be."""


class Damaged(Exception):
    """Why it is not, as a half-sentence."""
