"""Safe quotation of untrusted files in messages."""

LENGTH = 200


def brief(error: Exception | str) -> str:
    """Shorten an error or a text to one printable line of at most 200 characters.

    The text may quote the content of a hostile file, so control characters are replaced by blanks.
    """
    text = str(error) or type(error).__name__
    return "".join(letter if letter.isprintable() else " " for letter in text[:LENGTH])
