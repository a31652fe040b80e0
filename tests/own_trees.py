"""A small set of birds as users have it on disk: in every layout, under names of their own."""

import json

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from layout_trees import png, write, write_csv
from samphire.data.files import decode

WORDS = {"bird": ("landbird", "waterbird"), "place": ("land", "water")}
PARTS = ("train", "val", "test")
GROUPS = [(y, a, part) for part in range(3) for y in (0, 1) for a in (0, 1) for _ in range(3 - part + y + a)]
ROWS = [(i, *GROUPS[j]) for i, j in enumerate(np.random.default_rng(0).permutation(len(GROUPS)), 1)]
NAMED = ("picture", "bird", "fold", "place")
ASKED = {"image": "picture", "label": "bird", "split": "fold", "features": ["place"]}


def words(rows=ROWS, folder=""):
    return [(f"{folder}b{i:03d}.png", WORDS["bird"][y], PARTS[s], WORDS["place"][a]) for i, y, a, s in rows]


def records(rows=ROWS):
    return [dict(zip(NAMED, row, strict=True)) for row in words(rows)]


def pictures(folder):
    for i, *_ in ROWS:
        write(folder / f"b{i:03d}.png", png(i))


# Layouts: each writes a tree and says how it is opened


def csv_beside_images(root):
    pictures(root)
    write_csv(root / "list.csv", NAMED, words())
    return root, ASKED


def csv_guessed(root):
    pictures(root / "images")
    write_csv(root / "anything.csv", ("filename", "label", "split", "place"), words())
    return root, {}


def tsv(root):
    pictures(root)
    (root / "list.tsv").write_text("\n".join("\t".join(row) for row in (NAMED, *words())))
    return root / "list.tsv", ASKED


def semicolons(root):
    pictures(root)
    (root / "list.csv").write_text("\r\n".join(";".join(row) for row in (NAMED, *words())), encoding="utf-8-sig")
    return root, ASKED


def jsonl(root):
    pictures(root)
    (root / "metadata.jsonl").write_text("".join(json.dumps(record) + "\n\n" for record in records()))
    (root / "other.csv").write_text("a,b\n1,2\n")
    return root, ASKED


def parquet_of_names(root):
    pictures(root)
    pq.write_table(pa.Table.from_pylist(records()), root / "list.parquet")
    return root, ASKED


def encoded(rows, names=None):
    """As the datasets library stores images: structs of bytes, class names in the schema's metadata."""
    table = pa.Table.from_pylist(
        [{"bird": y, "place": WORDS["place"][a], "photo": {"bytes": png(i), "path": None}} for i, y, a, _ in rows]
    )
    features = {"bird": {"names": list(WORDS["bird"]), "_type": "ClassLabel"}}
    return table.replace_schema_metadata({"huggingface": json.dumps({"info": {"features": features}})})


def parquet_shards(root):
    for part, name in enumerate(("train", "validation", "test")):
        rows = [row for row in ROWS if row[3] == part]
        for k, half in enumerate((rows[:4], rows[4:])):
            pq.write_table(encoded(half), root / f"{name}-0000{k}-of-00002.parquet", row_group_size=3)
    return root, {"label": "bird"}


def saved_by_datasets(root):
    (root / "dataset_dict.json").write_text('{"splits": ["train", "validation", "test"]}')
    for part, name in enumerate(("train", "validation", "test")):
        rows = [row for row in ROWS if row[3] == part]
        (root / name).mkdir()
        for k, half in enumerate((rows[:4], rows[4:])):
            table = encoded(half)
            path = str(root / name / f"data-0000{k}-of-00002.arrow")
            with pa.OSFile(path, "wb") as file, pa.ipc.new_stream(file, table.schema) as stream:
                stream.write_table(table, max_chunksize=3)
    return root, {"label": "bird"}


def one_table_for_each_part(root):
    pictures(root)
    for part, name in enumerate(("training", "valid", "test")):
        rows = [row[:2] + row[3:] for row in words([row for row in ROWS if row[3] == part])]
        write_csv(root / f"{name}.csv", ("picture", "bird", "place"), rows)
    return root, {"label": "bird"}


def wilds_metadata(root):
    pictures(root)
    rows = [[i, f"b{i:03d}.png", WORDS["bird"][y], s, WORDS["place"][a], f"/p/{i}.jpg"] for i, y, a, s in ROWS]
    write_csv(root / "metadata.csv", ["img_id", "img_filename", "y", "split", "place", "place_filename"], rows)
    return root, {}


def tree_of_folders(root):
    for i, y, a, s in ROWS:
        write(root / PARTS[s] / WORDS["place"][a] / WORDS["bird"][y] / f"b{i:03d}.png", png(i))
    return root, {}


def pixels():
    return np.stack([decode(png(i), "") for i, *_ in ROWS])


def npz(root):
    _, bird, fold, place = (np.array(column) for column in zip(*words(), strict=True))
    np.savez(root / "birds.npz", pictures=pixels(), bird=bird, fold=fold, place=place)
    return root / "birds.npz", ASKED | {"image": "pictures"}


LAYOUTS = (
    csv_beside_images, csv_guessed, tsv, semicolons, jsonl, parquet_of_names, parquet_shards, saved_by_datasets,
    one_table_for_each_part, wilds_metadata, tree_of_folders, npz,
)  # fmt: skip
