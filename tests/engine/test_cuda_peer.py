"""Prompts between engines whose pages are on a GPU: they travel through host memory, and the tokens are the same."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")
pytest.importorskip("msgspec")
if not torch.cuda.is_available():
    pytest.skip("needs CUDA", allow_module_level=True)

from quire.engine.sampling import Sampling  # noqa: E402
from quire.transfer import Key, Limits, StagedView  # noqa: E402

from . import families  # noqa: E402
from .reference import Reference, assert_same  # noqa: E402
from .test_peer import drive, open_peer, words  # noqa: E402


@pytest.fixture(params=families.NAMES)
def name(request: pytest.FixtureRequest) -> str:
    if request.param in families.RECURRENT and not hasattr(transformers.DynamicCache, "get_conv_state"):
        pytest.skip(f"recurrent layers need transformers 5.22, this is {transformers.__version__}")
    return str(request.param)


@pytest.mark.parametrize(("there", "here"), [("cuda", "cuda"), ("cpu", "cuda"), ("cuda", "cpu")])
def test_tokens_are_those_of_one_engine(name: str, there: str, here: str) -> None:
    """Prompts that share a beginning, on memory so small that the host takes part; some are cancelled on the way."""
    reference = Reference(families.build(name))
    limits = Limits(transfer=60, lease=60)  # kernels are compiled on the way
    computes = open_peer(name, pages=40, device=there, serve=True, limits=limits)
    decodes = open_peer(name, pages=40, device=here, limits=limits)
    for peer, device in ((computes, there), (decodes, here)):
        assert isinstance(peer.endpoint.books.view, StagedView) == (device == "cuda")
    asks = []
    for nth in range(12):
        prompt = words(nth % 3, 20 + 9 * nth) + words(nth, 6)
        sampling = Sampling(max_tokens=8)
        run = decodes.decode(Key(f"r{nth}"), prompt, sampling, source=computes.link.address, order=True)
        if nth % 5 == 4:
            decodes.engine.cancel(run)
        else:
            asks.append((prompt, sampling, run))
    drive(computes, decodes)
    for prompt, sampling, run in asks:
        assert run.error is None and not run.fallback and run.received > 0
        assert_same(reference, prompt, sampling, [run.answers[0].tokens])
    for peer in (computes, decodes):
        view = peer.endpoint.books.view
        if isinstance(view, StagedView):
            assert [view.num_used(group) for group in range(len(view.shape().groups))] == [0] * len(view.shape().groups)
        peer.engine.close()
