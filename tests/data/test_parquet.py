"""Parquet files: images by position, damage named by file and row."""

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from layout_trees import BLOND, HUB, parquet_groups, png, write_parquet
from samphire.data import load, parquet
from samphire.data.parquet import ParquetImages


def test_parquet_images_are_read_by_position_and_named_by_row(tmp_path):
    files = [tmp_path / f"train-0000{k}-of-00002.parquet" for k in range(2)]
    write_parquet(files[0], {"image": [png(i) for i in range(3)]})
    with pq.ParquetWriter(files[1], pa.schema({"image": pa.binary()})) as file:
        for group in ([10], [11, 12, 13]):
            file.write_table(pa.table({"image": [png(i) for i in group]}))
    images = ParquetImages(files, "image")
    expected = [png(i) for i in (0, 1, 2, 10, 11, 12, 13)]
    assert [images.read(i) for i in range(7)] == expected
    some = images[np.array([5, 0, 6])]
    assert len(some) == 3
    assert [some.read(i) for i in range(3)] == [expected[5], expected[0], expected[6]]
    assert some.name(0) == f"{files[1]} row 2"
    assert len(images[np.arange(7) > 4]) == 2
    assert len({images.stamp(i) for i in range(7)}) == 7
    before = images.stamp(0)
    write_parquet(files[0], {"image": [png(5)] * 4})
    assert images.stamp(0) != before
    assert images.read(0) == png(5)


def test_damaged_parquet_is_named(tmp_path):
    place = tmp_path / "waterbirds/data"
    columns = {"label": lambda y, a: y, "place": lambda y, a: a}
    parquet_groups(place, columns, HUB, shards=2)
    shard = place / "train-00001-of-00002.parquet"
    whole = shard.read_bytes()
    shard.unlink()
    with pytest.raises(FileNotFoundError, match=r"has 1 of the 2 files of train-00000-of-00002.parquet"):
        load("waterbirds", tmp_path)
    shard.write_bytes(whole[:-20])
    with pytest.raises(ValueError, match=r"train-00001-of-00002.parquet cannot be read as parquet"):
        load("waterbirds", tmp_path)
    write_parquet(shard, {"image": [png(1), png(2)], "label": [0, 1], "place": [0, 7]})
    with pytest.raises(ValueError, match=r"train-00001-of-00002.parquet row 1: place is 7"):
        load("waterbirds", tmp_path)
    write_parquet(shard, {"image": [None, png(2)], "label": [0, 1], "place": [0, 1]})
    images = load("waterbirds", tmp_path)["train"].images
    with pytest.raises(ValueError, match=r"train-00001-of-00002.parquet row 0 holds no image in column 'image'"):
        [images.read(i) for i in range(len(images))]
    shard.write_bytes(whole)
    write_parquet(place / "extra-00000-of-00001.parquet", {"image": [png(1)]})
    with pytest.raises(ValueError, match=r"has split 'extra', which is none of train"):
        load("waterbirds", tmp_path)


@pytest.mark.parametrize(
    "note", ["[" * 100_000, '{"info": 5}', '{"info": {"features": {"label": {"names": 5}}}}', "{"]
)
def test_a_damaged_note_of_class_names_is_passed_over(tmp_path, note):
    table = pa.table({"x": [0.5, 1.5], "label": [0, 1]}).replace_schema_metadata({"huggingface": note})
    pq.write_table(table, tmp_path / "a.parquet")
    read = parquet.read_columns([tmp_path / "a.parquet"], ["label"])
    assert (read.columns["label"], read.names) == ([0, 1], {})


def test_a_column_that_is_there_twice_is_refused(tmp_path):
    twice = pa.Table.from_arrays([pa.array([0, 1]), pa.array([1, 0])], names=["label", "label"])
    pq.write_table(twice, tmp_path / "a.parquet")
    with pytest.raises(ValueError, match="it has 2 columns named label, and one is needed"):
        parquet.read_columns([tmp_path / "a.parquet"], ["label"])


def test_parts_that_are_missing_are_named(tmp_path):
    parquet_groups(tmp_path / "celeba/data", BLOND, HUB)
    (tmp_path / "celeba/data/validation-00000-of-00001.parquet").unlink()
    with pytest.raises(
        FileNotFoundError, match=r"celeba/data \(Hugging Face parquet layout\) lacks val\*-\*.parquet"
    ):
        load("celeba", tmp_path)


def test_vectors_that_are_too_short_are_refused(tmp_path):
    parquet_groups(tmp_path / "celeba/data", {"attributes": lambda y, a: [y, a]}, HUB)
    with pytest.raises(
        ValueError, match=r"train-00000-of-00001.parquet: column attributes has a row without an entry 9"
    ):
        load("celeba", tmp_path)


def test_parquet_of_another_set_is_told_by_its_columns(tmp_path):
    parquet_groups(tmp_path / "data", BLOND, HUB)
    with pytest.raises(ValueError, match=r"has no column label, only Blond_Hair, Male, image; it belongs to another"):
        load("waterbirds", tmp_path)
