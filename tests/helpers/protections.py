"""How tests name the protection of a setting, with its protocols."""

#: The values of each setting of protection, except plaintext.
HIDDEN = {"aggregation": "secure", "exchange": "encrypted", "pooling": "secure"}


def protection(setting: str, form: str) -> dict[str, str]:
    """Return the settings of a protection.

    Args:
        setting: Which setting names the protection.
        form: "plaintext", or how the protocol that hides is run: "real" or "simulated".
    """
    if form == "plaintext":
        return {setting: form}
    return {setting: HIDDEN[setting], "protocols": form}
