"""What a message may repeat of a file that is not trusted."""

__all__ = ["brief"]

LENGTH = 200


def brief(error: Exception | str) -> str:
    """The error's (or a) text on one line of bounded length: it may quote what a hostile file holds."""
    text = str(error) or type(error).__name__
    return "".join(letter if letter.isprintable() else " " for letter in text[:LENGTH])
