"""The YAML that says what is merged, and what is said of one that cannot be meant."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tensorprobe.errors import ConfigError
from tensorprobe.ranks.merge_config import read_merge_config


def written(folder: Path, text: str) -> Path:
    path = folder / "merge.yaml"
    path.write_text(text)
    return path


def test_the_example_of_the_manual_is_read(tmp_path: Path) -> None:
    config = read_merge_config(
        written(
            tmp_path,
            "api:\n- Distributed.all_reduce\n- Distributed.all_gather_into_tensor\n"
            "compare_index:\n- Max diff\n- L2norm diff\n- MeanRelativeErr\n",
        )
    )
    assert config.apis == ("Distributed.all_reduce", "Distributed.all_gather_into_tensor")
    assert config.metrics == ("Max diff", "L2norm diff", "MeanRelativeErr")
    assert config.modes == ("statistics",)
    assert config.notes == ()


@pytest.mark.parametrize("rest", ["", "compare_index:\n", "compare_index: []\n"])
def test_without_metrics_all_are_wanted(rest: str, tmp_path: Path) -> None:
    config = read_merge_config(written(tmp_path, f"api: [Distributed]\n{rest}"))
    assert config.metrics == ()
    assert config.modes == ("tensor", "statistics")


def test_what_both_kinds_have_fits_both() -> None:
    metrics = ["MaxRelativeErr", "Requires_grad Consistent"]
    config = read_merge_config({"api": ["a"], "compare_index": metrics})
    assert config.modes == ("tensor", "statistics")


API = "write 'api:' and below it '- Distributed.all_reduce'"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", f"is empty; {API}"),
        ("# nothing\n", f"is empty; {API}"),
        ("- Distributed\n", f"is no mapping with a field 'api'; {API}"),
        ("compare_index: [Cosine]\n", f"the field 'api' is missing; {API}"),
        ("api:\n", f"the field 'api' is empty; {API}"),
        ("api: []\n", f"the field 'api' is empty; {API}"),
        ("api: Distributed\n", "api is a text, wanted a list; write 'api:' and below it '- Distr"),
        ("api: {a: b}\n", "api is a dict, wanted a list"),
        ("api: 5\n", "api is 5, wanted a list"),
        ("api: [5]\n", "api holds 5, wanted texts; quote it"),
        ("api: ['']\n", "api holds '', wanted texts"),
        ("api: [a]\ncompare_index: Cosine\n", "below it '- Cosine'"),
        (
            "api: [a]\ncompare_index: [max dif]\n",
            "compare_index: 'max dif' is no metric; did you mean 'Max d",
        ),
        ("api: [a]\ncompare_index: [CosIne]\n", "'CosIne' is no metric; did you mean 'Cosine'?"),
        (
            "api: [a]\ncompare_index: [zzz]\n",
            "is no metric; real data has Cosine, EucDist.*; statis",
        ),
        (
            "api: [a]\ncompare_index: [Cosine, Max diff]\n",
            "holds 'Cosine' of real data and 'Max diff' of statistics, and no result has both",
        ),
        ("apis: [a]\n", "'apis' is an unknown field; did you mean 'api'?"),
        ("api: [a]\ncompare_indx: [b]\n", "'compare_indx' is an unknown .* mean 'compare_index'?"),
        ("api: [a\n", "line 2, column 1: this is not YAML"),
        ("api: &x [a]\ncompare_index: *x\n", "aliases"),
        ("api: !!python/object/apply:os.system [ls]\n", "tag"),
    ],
)
def test_what_cannot_be_meant_is_one_clear_line(text: str, message: str, tmp_path: Path) -> None:
    path = written(tmp_path, text)
    with pytest.raises(ConfigError, match=message.replace("?", r"\?")) as caught:
        read_merge_config(path)
    assert str(caught.value).startswith(f"{path}: ")
    assert "\n" not in str(caught.value)


def test_a_field_of_another_tool_has_no_effect_and_that_is_said(tmp_path: Path) -> None:
    config = read_merge_config(written(tmp_path, "api: [a]\nframework: pytorch\n1: 2\n"))
    assert [note.partition(": ")[2] for note in config.notes] == [
        "'framework' has no effect; the fields are api, compare_index",
        "1 has no effect; the fields are api, compare_index",
    ]


@pytest.mark.parametrize("given", [None, 5, ["api"]])
def test_what_is_no_configuration_is_refused(given: Any) -> None:
    with pytest.raises(ConfigError, match=r"the configuration is .*; wanted a path, or a dict"):
        read_merge_config(given)
