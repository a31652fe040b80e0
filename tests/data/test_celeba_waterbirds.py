"""Lists of images: faults are named by file and row."""

import csv
from pathlib import Path

import pytest

from layout_trees import celeba_csv, celeba_text, metadata, png, write, write_csv
from samphire.data import load


def listed_again(path):
    path.write_text(path.read_text() + "000001.jpg,0\n")


def with_cell(row, column, value):
    """Change a cell of a list that is written; both are counted from 0, the header is row 0."""

    def change(path):
        with path.open(newline="") as file:
            rows = list(csv.reader(file))
        rows[row][rows[0].index(column)] = value
        write_csv(path, rows[0], rows[1:])

    return change


def dropped(row):
    def change(path):
        lines = path.read_text().splitlines(keepends=True)
        path.write_text("".join(line for i, line in enumerate(lines) if i != row))

    return change


LIST, PARTITION = "list_attr_celeba.{}", "list_eval_partition.{}"
FAULTS = {
    "unknown split": (celeba_csv, PARTITION, with_cell(3, "partition", "3"), r"list_eval_partition.csv line 4: split is '3', which is none of 0, 1, 2"),
    "unknown value": (celeba_csv, LIST, with_cell(3, "Male", "x"), r"list_attr_celeba.csv line 4: male is 'x'"),
    "row only here": (celeba_csv, PARTITION, dropped(3), r"list_attr_celeba.csv line 6 lists 000005.jpg, which .*partition.csv lacks"),
    "row only there": (celeba_csv, LIST, dropped(3), r"partition.csv line 6 lists 000003.jpg, which .*attr_celeba.csv lacks"),
    "listed twice": (celeba_csv, LIST, with_cell(5, "image_id", "000002.jpg"), r"list_attr_celeba.csv line 6 lists 000002.jpg again, after line 3"),
    "short row": (celeba_csv, LIST, lambda p: p.write_text(p.read_text()[:-4]), r"line 8 has 40 entries for 41 columns"),
    "truncated text": (celeba_text, LIST, dropped(8), r"attr_celeba.txt holds 6 rows instead of the 7 rows its first line"),
    "listed again there": (celeba_csv, PARTITION, listed_again, r"list_eval_partition.csv line 9 lists 000001.jpg again, after line 8"),
    "no column": (celeba_csv, LIST, lambda p: p.write_text(p.read_text().replace("Male", "Mail")), r"has no column Male, only image_id, attribute0"),
    "empty": (celeba_csv, LIST, lambda p: p.write_text(""), r"list_attr_celeba.csv holds 0 rows instead of one row or more"),
    "not text": (celeba_csv, LIST, lambda p: p.write_bytes(b"\xff\xfe\x00"), r"list_attr_celeba.csv is not a list in text"),
    "image missing": (celeba_csv, "img_align_celeba/000004.jpg", Path.unlink, r"line 5 lists 000004.jpg, which is not in .*img_align_celeba; put the images there"),
}  # fmt: skip


@pytest.mark.parametrize(("make", "file", "change", "message"), FAULTS.values(), ids=FAULTS)
def test_faults_are_named_by_file_and_row(tmp_path, make, file, change, message):
    make(tmp_path)
    change(tmp_path / file.format("csv" if make is celeba_csv else "txt"))
    with pytest.raises((ValueError, FileNotFoundError), match=message):
        load("celeba", tmp_path)


def test_an_image_outside_the_folder_is_not_taken(tmp_path):
    metadata(tmp_path / "waterbirds")
    write(tmp_path / "secret.jpg", png(1))
    with_cell(2, "img_filename", "../secret.jpg")(tmp_path / "waterbirds/metadata.csv")
    with pytest.raises(FileNotFoundError, match=r"metadata.csv line 3 lists ../secret.jpg, which is not in"):
        load("waterbirds", tmp_path)
