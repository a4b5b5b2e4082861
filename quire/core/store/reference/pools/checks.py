"""Checks of arguments that more than one act makes, before anything changes.

Owns what is refused and how it is said. Knows nothing of the acts.
"""

from quire.core.store.reference.keys.chain import Chain
from quire.core.store.reference.pools.state import State


def check_chain(state: State, chain: Chain) -> None:
    """The chain is cut as the store is."""
    size = state.rules.block_size
    if chain.block_size != size:
        raise ValueError(f"the chain has blocks of {chain.block_size} tokens, the store of {size}")


def check_frozen(state: State) -> None:
    """Blocks may be removed only when every claim knows its pages without them."""
    if state.loose:
        raise ValueError(f"{state.loose} claims are open that were not frozen")


def check_vacant(state: State, number: int) -> None:
    rows = state.table.rows
    if not 0 <= number < len(rows):
        raise LookupError(f"row {number} is not one of the {len(rows)} rows")
    if rows[number] is not None:
        raise ValueError(f"row {number} is live already")


def check_end(state: State, number: int, end: int) -> None:
    """A live row can be handed out up to `end`."""
    length = len(state.table.row(number).chain)
    if not int(state.table.computed[number]) <= end <= length:
        raise ValueError(f"row {number} has {length} tokens, it cannot be handed out up to {end}")


def check_back(state: State, number: int, end: int) -> None:
    """What a live row was handed out from `end` on can be taken back."""
    state.table.row(number)
    if not int(state.table.computed[number]) <= end <= int(state.table.handed[number]):
        raise ValueError(f"row {number} cannot be taken back to {end}")
