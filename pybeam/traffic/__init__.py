"""How soon a server answers under load: clients that send texts to it, and the sum of their answers.

async with Clients(("127.0.0.1", 8000), timeout=30.0) as clients:
    contents = [post("/v1/translations", {"text": "Jesús lloró."})] * 3
    await open_loop(clients, contents, [0.0, 0.1, 0.3], lambda moment, answer: print(moment, answer))

Any server of HTTP/1.1 will do; `SHAPES` has the bodies that servers take. `pybeam bench-serve` and the
benchmarks of `pybeam serve` send their requests from here. Nothing here needs torch.
"""

from pybeam.traffic.clients import Address, Answer, Clients, post
from pybeam.traffic.loops import Window, arrivals, closed_loop, open_loop
from pybeam.traffic.shapes import SHAPES, Shape
from pybeam.traffic.summary import Summary, as_text
from pybeam.traffic.target import Target

__all__ = [
    "SHAPES",
    "Address",
    "Answer",
    "Clients",
    "Shape",
    "Summary",
    "Target",
    "Window",
    "arrivals",
    "as_text",
    "closed_loop",
    "open_loop",
    "post",
]
