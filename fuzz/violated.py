"""How a target says that an invariant does not hold."""


class Violated(AssertionError):
    """Something happened that no input may cause."""


def require(condition: object, what: str) -> None:
    """Complain unless the condition holds; unlike `assert`, also under -O."""
    if not condition:
        raise Violated(what)
