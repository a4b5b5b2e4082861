"""Folders with a model: what is in them is read, never run."""

from __future__ import annotations

import io
import json
import shutil
import sys
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

from quire import InputError  # noqa: E402
from quire.engine import LLM, load  # noqa: E402
from quire.engine.model.folders import INDEX, SAFE  # noqa: E402
from quire.engine.model.load import LOCAL  # noqa: E402

from .. import families  # noqa: E402
from ..words import byte_tokenizer  # noqa: E402

PROGRAM = """
from pathlib import Path
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast
Path({mark!r}).write_text("it ran")
class Config(LlamaConfig):
    model_type = "homemade"
class Module(LlamaForCausalLM):
    config_class = Config
class Words(PreTrainedTokenizerFast):
    pass
"""


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("model")
    families.build("llama").save_pretrained(place)
    byte_tokenizer().save_pretrained(place)
    return place


@pytest.fixture
def folder(whole: Path, tmp_path: Path) -> Path:
    """A copy to spoil."""
    return Path(shutil.copytree(whole, tmp_path / "model"))


def change(file: Path, **values: Any) -> None:
    file.write_text(json.dumps(json.loads(file.read_text("utf-8")) | values))


@pytest.mark.parametrize("what", ["model", "tokenizer"])
def test_a_folder_with_a_program_is_refused_and_nobody_is_asked(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, what: str
) -> None:
    """Somebody pipes a `y` into standard input: that is no leave to run what is in a folder."""
    mark = tmp_path / "mark"
    (folder / "homemade.py").write_text(PROGRAM.format(mark=str(mark)))
    monkeypatch.setattr(sys, "stdin", io.StringIO("y\n" * 10))
    monkeypatch.setenv("HF_MODULES_CACHE", str(tmp_path / "modules"))
    if what == "model":
        classes = {"AutoConfig": "homemade.Config", "AutoModelForCausalLM": "homemade.Module"}
        change(folder / "config.json", model_type="homemade", auto_map=classes)
    else:
        words = {"AutoTokenizer": [None, "homemade.Words"]}
        change(folder / "tokenizer_config.json", tokenizer_class="Words", auto_map=words)
        change(folder / "config.json", model_type="llama")
    with pytest.raises(InputError, match="it brings Python code of its own, and Quire runs none; use a model that"):
        load(folder)
    assert not mark.exists() and len(sys.stdin.read()) == 20


def test_a_program_beside_a_known_model_is_left_alone(folder: Path, tmp_path: Path) -> None:
    mark = tmp_path / "mark"
    (folder / "homemade.py").write_text(PROGRAM.format(mark=str(mark)))
    change(folder / "config.json", auto_map={"AutoModelForCausalLM": "homemade.Module"})
    assert type(load(folder).module).__name__ == "LlamaForCausalLM" and not mark.exists()


@pytest.mark.parametrize("name", ["pytorch_model.bin", "model.pt", "consolidated.00.pth"])
def test_pickled_weights_are_refused_with_the_cure(folder: Path, name: str) -> None:
    torch.save(families.build("llama").state_dict(), folder / name)
    load(folder)  # beside safe ones they are not looked at
    (folder / f"model{SAFE}").unlink()
    with pytest.raises(InputError, match=f"{name} holds pickled weights.*; convert it .*save_pretrained") as told:
        LLM(folder)
    assert str(folder) in str(told.value) and "\n" not in str(told.value)


def test_the_cure_works(folder: Path, tmp_path: Path) -> None:
    weights = families.build("llama").state_dict()
    torch.save(weights, folder / "pytorch_model.bin")
    (folder / f"model{SAFE}").unlink()
    transformers.AutoModelForCausalLM.from_pretrained(folder).save_pretrained(tmp_path / "another")
    again = load(tmp_path / "another").module.state_dict()
    assert all(torch.equal(again[name], weight) for name, weight in weights.items())


def test_an_index_that_names_pickled_parts(folder: Path) -> None:
    torch.save(families.build("llama").state_dict(), folder / "part.bin")
    (folder / f"model{SAFE}").unlink()
    index = folder / f"model{INDEX}"
    index.write_text(json.dumps({"metadata": {}, "weight_map": {"lm_head.weight": "part.bin"}}))
    with pytest.raises(InputError, match=r"part\.bin holds pickled weights"):
        load(folder)
    for nonsense in ("[]", "{", '{"weight_map": 7}', "[" * 100_000):
        index.write_text(nonsense)
        with pytest.raises(InputError, match="is not an index of weights"):
            load(folder)


@pytest.mark.parametrize("named_by", ["its usual index", "an index in the config"])
@pytest.mark.parametrize("way", ["../elsewhere/", "{}/elsewhere/", "..\\elsewhere\\", "C:", "sub/"])
def test_an_index_that_leads_out_of_the_folder(folder: Path, tmp_path: Path, way: str, named_by: str) -> None:
    """What it names may be whole and safe weights: they are not read."""
    for place in (tmp_path / "elsewhere", folder / "sub"):
        place.mkdir()
        shutil.copy(folder / f"model{SAFE}", place / f"part{SAFE}")
    (folder / f"model{SAFE}").unlink()
    shards = dict.fromkeys(families.build("llama").state_dict(), way.format(tmp_path) + f"part{SAFE}")
    name = f"model{INDEX}" if named_by == "its usual index" else f"other{INDEX}"
    (folder / name).write_text(json.dumps({"metadata": {}, "weight_map": shards}))
    change(folder / "config.json", transformers_weights=name)
    with pytest.raises(InputError, match=r"it names weights that are not files of this folder: .*; name a folder with"):
        load(folder)


@pytest.mark.parametrize("name", [f"sub/other{INDEX}", f"../model{SAFE}", "/etc/passwd"])
def test_a_config_that_leads_out_of_the_folder(folder: Path, name: str) -> None:
    change(folder / "config.json", transformers_weights=name)
    with pytest.raises(InputError, match=f"weights that are not files of this folder: '{name}'; name a folder"):
        load(folder)
    (folder / f"model{SAFE}").rename(folder / f"other{SAFE}")
    change(folder / "config.json", transformers_weights=f"other{SAFE}")
    assert type(load(folder).module).__name__ == "LlamaForCausalLM"


def split_weights(place: Path) -> list[str]:
    """Its weights in several files with an index; their names."""
    (place / f"model{SAFE}").unlink()
    families.build("llama").save_pretrained(place, max_shard_size="100KB")
    names = sorted(file.name for file in place.glob(f"*{SAFE}"))
    assert len(names) > 1 and (place / f"model{INDEX}").is_file()
    return names


def test_an_index_in_a_hub_cache_leads_to_links(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path))
    split_weights(folder)
    in_hub_cache(tmp_path, folder)
    again = load("Qwen/Qwen3-0.6B").module.state_dict()
    assert all(torch.equal(again[name], weight) for name, weight in families.build("llama").state_dict().items())


def test_what_transformers_cannot_load_is_told_in_a_line(folder: Path) -> None:
    (folder / f"model{SAFE}").write_bytes(b"\x00" * 64)
    with pytest.raises(InputError, match=r"transformers cannot load it: .*; name a folder with a whole model") as told:
        load(folder)
    assert "\n" not in str(told.value)
    (folder / f"model{SAFE}").unlink()
    with pytest.raises(InputError, match="transformers cannot load it: OSError"):
        load(folder)
    (folder / "config.json").write_text("{")
    with pytest.raises(InputError, match="transformers cannot load it"):
        load(folder)


@pytest.mark.parametrize("wrong", [7, b"folder", "a\0b", ["folder"], 1.5, "x" * 10_000])
def test_what_is_no_folder(wrong: Any) -> None:
    with pytest.raises(InputError, match="name a folder with a model"):
        LLM(wrong)


def test_every_reader_says_that_it_trusts_nobody() -> None:
    """Whoever adds another call says it too."""
    assert LOCAL == {"local_files_only": True, "trust_remote_code": False}
    calls = 0
    for path in Path(sys.modules["quire.engine"].__file__ or "").parent.rglob("*.py"):
        for part in path.read_text("utf-8").split(".from_pretrained(")[1:]:
            call = part.split("\n\n")[0][:250]
            assert "**LOCAL" in call or "save_pretrained" in call, f"{path.name}: {call}"
            calls += "**LOCAL" in call
    assert calls >= 4


# -- models named as on the hub --------------------------------------------------------------------------------------

PART = r"^model 'Qwen/Qwen3-0\.6B': the hub cache has only a part of it; run: hf download Qwen/Qwen3-0\.6B$"
COMMIT = "c1899de289a04d12100db370d81485cdf75e47ca"


def in_hub_cache(cache: Path, model: Path, commit: str = COMMIT) -> Path:
    """A downloaded model: a snapshot of links to blobs, and the name of the commit."""
    repository = cache / "models--Qwen--Qwen3-0.6B"
    snapshot, blobs = repository / "snapshots" / commit, repository / "blobs"
    for place in (snapshot, blobs, repository / "refs"):
        place.mkdir(parents=True)
    for nth, file in enumerate(sorted(model.iterdir())):
        shutil.copy(file, blobs / str(nth))
        (snapshot / file.name).symlink_to(Path("../../blobs") / str(nth))
    (repository / "refs" / "main").write_text(commit)
    return snapshot


@pytest.mark.parametrize("variable", ["HF_HUB_CACHE", "HF_HOME", "XDG_CACHE_HOME", "HOME"])
def test_a_model_by_its_hub_id(whole: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, variable: str) -> None:
    for other in ("HF_HUB_CACHE", "HF_HOME", "XDG_CACHE_HOME"):
        monkeypatch.delenv(other, raising=False)
    monkeypatch.setenv(variable, str(tmp_path))
    below = {"HF_HUB_CACHE": ".", "HF_HOME": "hub", "XDG_CACHE_HOME": "huggingface/hub"}
    in_hub_cache(tmp_path / below.get(variable, ".cache/huggingface/hub"), whole)
    notes: list[str] = []
    with LLM("Qwen/Qwen3-0.6B", tell=notes.append, device_bytes="4MiB") as llm:
        assert len(llm.generate("ab", max_tokens=2, ignore_eos=True)[0].tokens[0]) == 2
    assert notes == ["loading Qwen/Qwen3-0.6B"]


def test_a_folder_of_that_name_comes_first(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path / "cache"))
    (tmp_path / "Qwen").mkdir()
    folder.rename(tmp_path / "Qwen" / "Qwen3-0.6B")
    monkeypatch.chdir(tmp_path)
    assert type(load("Qwen/Qwen3-0.6B").module).__name__ == "LlamaForCausalLM"


def test_a_model_that_was_not_downloaded(whole: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path))
    with pytest.raises(InputError) as told:
        LLM("Qwen/Qwen3-0.6B")
    fact = f"there is no such folder, and the hub cache {tmp_path} has no such model"
    assert str(told.value) == f"model 'Qwen/Qwen3-0.6B': {fact}; run: hf download Qwen/Qwen3-0.6B"
    snapshot = in_hub_cache(tmp_path, whole)
    (snapshot / "config.json").unlink()
    with pytest.raises(InputError, match=PART):
        load("Qwen/Qwen3-0.6B")


def cut(file: Path) -> None:
    """As a disk that is full leaves it."""
    whole = file.read_bytes()
    file.resolve().write_bytes(whole[: len(whole) // 2])


@pytest.mark.parametrize("what", ["no file", "a link to nothing", "half a file"])
@pytest.mark.parametrize("which", ["the only file", "one of several", "the index"])
def test_a_model_that_was_downloaded_by_half(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, which: str, what: str
) -> None:
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path))
    names = [f"model{SAFE}"] if which == "the only file" else split_weights(folder)
    file = in_hub_cache(tmp_path, folder) / (f"model{INDEX}" if which == "the index" else names[-1])
    {"no file": Path.unlink, "a link to nothing": lambda link: link.resolve().unlink(), "half a file": cut}[what](file)
    for reader in (load, LLM):
        with pytest.raises(InputError, match=PART):
            reader("Qwen/Qwen3-0.6B")


def test_a_downloaded_model_is_read_as_carefully_as_others(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path))
    (folder / f"model{SAFE}").rename(folder / "pytorch_model.bin")
    snapshot = in_hub_cache(tmp_path, folder)
    with pytest.raises(InputError, match=r"pytorch_model\.bin holds pickled weights"):
        load("Qwen/Qwen3-0.6B")
    (snapshot / "pytorch_model.bin").unlink()
    (snapshot / f"model{INDEX}").write_text(json.dumps({"weight_map": {"lm_head.weight": f"../nowhere{SAFE}"}}))
    with pytest.raises(InputError, match="it names weights that are not files of this folder"):
        load("Qwen/Qwen3-0.6B")


@pytest.mark.parametrize("variable", ["HF_HUB_CACHE", "HF_HOME"])
def test_a_hub_cache_of_nobody(monkeypatch: pytest.MonkeyPatch, variable: str) -> None:
    monkeypatch.delenv("HF_HUB_CACHE", raising=False)
    monkeypatch.setenv(variable, "~nobody-of-this-name/x")
    with pytest.raises(InputError, match=f"^{variable} '~nobody-of-this-name/x': .*; set {variable} to a whole path$"):
        load("Qwen/Qwen3-0.6B")


def test_no_name_is_not_the_current_folder(whole: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(whole)
    for reader in (load, LLM):
        with pytest.raises(InputError, match=r"^model '': that names no folder; name a folder with a model$"):
            reader("")
    load(".")


@pytest.mark.parametrize("commit", ["", "..", "../..", "\0", "nowhere", "x" * 5000])
def test_a_damaged_hub_cache(whole: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, commit: str) -> None:
    """What its files say leads nowhere else."""
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path))
    snapshot = in_hub_cache(tmp_path, whole)
    (snapshot.parent.parent / "refs" / "main").write_text(commit)
    with pytest.raises(InputError, match="has no such model; run: hf download"):
        load("Qwen/Qwen3-0.6B")


@pytest.mark.parametrize("name", ["../x", "./x", "a/b/c", "a", "/a/b", "a/b c", "a/", "é/b"])
def test_what_is_no_hub_id(name: str) -> None:
    with pytest.raises(InputError, match=r"there is no config\.json in it; name a folder with a model"):
        load(name)
