from __future__ import annotations

from pathlib import Path

import making
import numpy as np
import pytest
from espalier import samples, trainers


@pytest.fixture()
def group(tmp_path: Path) -> samples.Group:
    return next(samples.read(making.write(tmp_path / "g.msgpack", [making.group()])))


def test_slime_gets_response_arrays_of_one_length_and_drops_what_has_no_reward(group: samples.Group) -> None:
    rows = trainers.slime(group, images=None)
    assert [row["remove_sample"] for row in rows] == [False, False, True]
    for row in rows:
        assert row["response_length"] == len(row["loss_mask"]) == len(row["rollout_log_probs"])
    assert rows[0]["tokens"][-rows[0]["response_length"] :] == [20, 21, 22, 23, 13, 14, 30, 31]
    assert rows[0]["loss_mask"] == [1, 1, 1, 0, 0, 0, 1, 1]
    assert rows[0]["weight_versions"] == ["v1", "v2", "v2"]
    assert (rows[2]["status"], rows[2]["reward"]) == ("aborted", 0.0)


def test_verl_splits_at_the_first_sampled_token(group: samples.Group) -> None:
    rows = trainers.verl(group, images=None)
    assert rows[1]["prompt_ids"] == [10, 11, 12, 20, 21]
    assert rows[1]["response_ids"] == [40, 41, 15] and rows[1]["response_mask"] == [1, 1, 0]
    assert rows[0]["extra_fields"]["min_version"] == "v1" and rows[0]["extra_fields"]["max_version"] == "v2"
    assert rows[2]["reward_score"] is None


def test_tinker_moves_targets_by_one_and_zeroes_what_is_masked(group: samples.Group) -> None:
    main, rewritten = group.trajectories[0].segments
    datum = trainers.tinker(main, np.arange(1, 12, dtype=np.float32))
    assert datum["input_tokens"].tolist() == main.tokens.tolist()[:-1]
    assert datum["target_tokens"].tolist() == main.tokens.tolist()[1:]
    assert datum["advantages"].tolist() == [0, 0, 4, 5, 6, 0, 0, 0, 10, 11]
    assert datum["advantages"].dtype == np.float32
    assert trainers.tinker(main)["advantages"].tolist() == [0, 0, 1, 1, 1, 0, 0, 0, 1, 1]
    with pytest.raises(ValueError, match="carries no advantages"):
        trainers.tinker(rewritten, images=None)
    with pytest.raises(ValueError, match="3 advantages for 8 tokens"):
        trainers.tinker(rewritten, np.zeros(3, dtype=np.float32), images=None)


def test_a_row_with_images_is_refused_unless_they_are_loaded_or_ignored(group: samples.Group, tmp_path: Path) -> None:
    digest = "cd" * 32
    for refused in (
        lambda: trainers.slime(group),
        lambda: trainers.verl(group),
        lambda: trainers.tinker(group.trajectories[0].segments[1]),
    ):
        with pytest.raises(trainers.ImagesIgnored, match="the row holds 1 images; pass images="):
            refused()
    images = samples.Images(tmp_path / "g.msgpack")
    with pytest.raises(samples.ImageMissing, match="neither in the group nor in"):
        trainers.slime(group, images)
    (tmp_path / "g.msgpack.images").mkdir()
    (tmp_path / "g.msgpack.images" / f"{digest}.png").write_bytes(b"pixels")
    row = trainers.slime(group, images)[1]
    assert row["multimodal_inputs"] == {"images": [b"pixels"]}
    assert row["metadata"]["images"] == [{"digest": digest, "start": 0, "len": 2}]
    assert "multimodal_inputs" not in trainers.slime(group, images)[0]
    row = trainers.verl(group, images)[1]
    assert (row["multi_modal_data"], row["extra_fields"]["images"][0]["len"]) == ({"images": [b"pixels"]}, 2)
    advantages = np.zeros(8, dtype=np.float32)
    assert trainers.tinker(group.trajectories[0].segments[1], advantages, images)["images"] == [(0, 2, b"pixels")]
    ignored = trainers.slime(group, images=None)[1]
    assert "multimodal_inputs" not in ignored and len(ignored["metadata"]["images"]) == 1


@pytest.mark.parametrize("form", ["jsonl", "msgpack"])
def test_images_in_groups_are_read_from_them(tmp_path: Path, form: str) -> None:
    digest = "cd" * 32
    raw = making.group()
    data = "cGl4ZWxz" if form == "jsonl" else b"pixels"
    raw["image_data"] = {digest: {"media_type": "image/png", "data": data}}
    path = making.write(tmp_path / f"g.{form}", [raw])
    assert samples.check_file(path).findings == []
    images = samples.Images(path)
    for group in samples.read(path):
        images.add(group)
        assert (group.images, images(digest)) == (1, b"pixels")
