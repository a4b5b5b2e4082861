"""The demo's last part: the embedded model answers two questions about one text; the second finds its KV cached."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

from quire import QuireError
from quire.cli.chat import cost
from quire.cli.model_options import need_engine

if TYPE_CHECKING:
    from quire.engine import LLM, Run

QUESTIONS = ("What is the name of the dog?", "What does the boat bring on Thursday?")
LONGEST_ANSWER = 24
_INTRODUCTION = """
-- And with a real model: two questions about the same text, the story of a lighthouse --
"""


def main() -> int:
    """Ask both; 0 when the second reused the text or there is no model to ask, 1 when something went wrong."""
    print(_INTRODUCTION)
    try:
        print("   importing torch and transformers ...", flush=True)
        need_engine(None)
        from quire.engine import LLM

        llm = LLM(tell=lambda note: print(f"   {note} ...", flush=True))
    except (QuireError, ImportError) as error:
        print(f"   left out: {error}")
        return 0
    with llm:
        try:
            first, second = (_ask(llm, question) for question in QUESTIONS)
        except QuireError as error:
            print(f"\n   failed: {error}")
            return 1
    faster = first.time_to_first_token / second.time_to_first_token
    print(f"\n   The second one's first token came {faster:.0f} times sooner: {second.reused:,} tokens were reused.")
    return 0 if second.reused > len(second.prompt) // 2 else 1


def _ask(llm: LLM, question: str) -> Run:
    print(f"\n   {question}\n   ", end="", flush=True)
    stream = llm.stream([{"role": "user", "content": f"{STORY}\n{question}"}], max_tokens=LONGEST_ANSWER)
    for piece in stream:
        print(piece.text.replace("\n", " "), end="", flush=True)
    run = stream.wait()
    print(f"\n   {cost(run)}", flush=True)
    return run


STORY = """\
The lighthouse of Brannock stands on a black rock, two miles from the village. It was built in 1874 by an engineer \
called Samuel Thorne, who had never seen the sea before he came to the coast. The tower is white, with one red band, \
and it has 214 steps. At the top is a lamp that turns once every twelve seconds. On a clear night it can be seen from \
a ship that is twenty miles away.

The keeper of the lighthouse is a woman called Marta Lindqvist. She came to the rock when she was thirty years old, \
and she has lived there for nineteen years. Before that she repaired clocks in the city. She says that a lighthouse is \
only a large clock with a lamp in place of the hands. Every morning she climbs the steps, cleans the glass, and writes \
the weather into a green book. There are forty of these books now, and they stand on a shelf in the kitchen.

Marta has a dog. The dog is called Biscuit. It is brown and old, and it is afraid of the seals that sleep on the \
lower rocks. When the seals bark, Biscuit hides under the kitchen table until they are quiet again. The dog likes the \
baker best of all people, because the baker brings a bone with the bread.

Once a week, on Thursday, a small blue boat comes from the village. It brings bread, milk, letters and lamp oil. The \
boat belongs to the baker, whose name is Tom Hale. Tom is afraid of deep water, but he has never missed a Thursday. He \
says that a promise does not ask about the weather. In winter the waves are often too high to land, and then Marta \
lets down a basket on a long rope, and Tom ties the bread to it.

In the great storm of 1998 the lamp went out. The motor that turns it had broken, and the radio was silent. Marta \
turned the lamp by hand for eleven hours, and counted twelve seconds for each turn, again and again, until the sun \
rose. In the morning three fishing boats came past the rock, one behind the other, and all of them blew their horns. \
The fishermen gave her a bell made of brass. It hangs beside the door, and she rings it once a year, on the day of \
the storm.

People from the city sometimes ask her whether she is lonely. She laughs and says that she has a dog, a baker, forty \
books of weather and every ship that passes. Only the seals, she says, never answer when she greets them.
"""


if __name__ == "__main__":
    sys.exit(main())
