"""How a number is said with its noun."""


def counted(num: int, noun: str) -> str:
    """The number and its noun, of which there are one or several: "1 line", "2,000 lines"."""
    return f"{num:,} {noun}" if num == 1 else f"{num:,} {noun}s"
