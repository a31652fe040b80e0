"""Writers of small data sets in every layout that users have."""

import csv
import io
import json

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from PIL import Image

from samphire.data import domains

PARTS = ("train", "val", "test")


def png(i, mode="RGB", size=(4, 4)):
    """An encoded image that is unlike those of other i."""
    pixels = np.random.default_rng(i).integers(0, 256, (*size, 3) if mode == "RGB" else size, np.uint8)
    file = io.BytesIO()
    Image.fromarray(pixels).save(file, "png")
    return file.getvalue()


def write(path, content):
    path.parent.mkdir(parents=True, exist_ok=True)
    if isinstance(content, str):
        path.write_text(content)
    else:
        path.write_bytes(content)


def write_csv(path, header, rows):
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w", newline="") as file:
        csv.writer(file).writerows([header, *rows])


def write_parquet(path, columns, names=None, image="image"):
    """As the datasets library writes it: images as structs, class names in the schema's metadata."""
    path.parent.mkdir(parents=True, exist_ok=True)
    columns = dict(columns)
    columns[image] = [{"bytes": data, "path": None} for data in columns.pop("image")]
    features = {column: {"names": n, "_type": "ClassLabel"} for column, n in (names or {}).items()}
    table = pa.table(columns).replace_schema_metadata({"huggingface": json.dumps({"info": {"features": features}})})
    pq.write_table(table, path, row_group_size=2)


# Sets with groups: rows of (image number, label, attribute, part), in the order of the lists

ROWS = [(i, y, a, part) for i, (y, a, part) in enumerate([(0, 0, 0), (1, 0, 0), (1, 1, 2), (0, 1, 1), (0, 1, 0), (1, 1, 1), (0, 0, 2)], 1)]  # fmt: skip
ATTRIBUTES = [f"attribute{k}" for k in range(40)]
ATTRIBUTES[9], ATTRIBUTES[20] = "Blond_Hair", "Male"


def attributes(y, a, low=-1):
    values = [low] * 40
    values[9], values[20] = (1 if y else low), (1 if a else low)
    return values


def faces(folder, name="{:06d}.jpg"):
    for i, *_ in ROWS:
        write(folder / name.format(i), png(i))


def celeba_text(place, images="img_align_celeba"):
    faces(place / images)
    rows = [f"{i:06d}.jpg  {' '.join(map(str, attributes(y, a)))}" for i, y, a, _ in ROWS]
    write(place / "list_attr_celeba.txt", "\n".join([str(len(ROWS)), " ".join(ATTRIBUTES), *rows, ""]))
    write(place / "list_eval_partition.txt", "".join(f"{i:06d}.jpg {part}\n" for i, _, _, part in ROWS))


def celeba_csv(place, images="img_align_celeba"):
    faces(place / images)
    rows = [[f"{i:06d}.jpg", *attributes(y, a)] for i, y, a, _ in ROWS]
    write_csv(place / "list_attr_celeba.csv", ["image_id", *ATTRIBUTES], rows)
    parts = [[f"{i:06d}.jpg", part] for i, _, _, part in reversed(ROWS)]  # the lists are joined, whatever their order
    write_csv(place / "list_eval_partition.csv", ["image_id", "partition"], parts)


def metadata(place, images=".", spurious="place", name="{:06d}.jpg"):
    faces(place / images, name)
    rows = [[i, name.format(i), y, part, a, "/o/ocean.jpg"] for i, y, a, part in ROWS]
    write_csv(place / "metadata.csv", ["img_id", "img_filename", "y", "split", spurious, "place_filename"], rows)


def subpopbench(path, images, name="{:06d}.jpg"):
    faces(images, name)
    rows = [[i, name.format(i), part, y, a] for i, y, a, part in ROWS]
    write_csv(path, ["id", "filename", "split", "y", "a"], rows)


def parquet_groups(place, columns, parts=PARTS, shards=1):
    for k, part in enumerate(parts):
        rows = [row for row in ROWS if row[3] == k]
        for s, chosen in enumerate(np.array_split(np.arange(len(rows)), shards)):
            mine = [rows[j] for j in chosen]
            values = {"image": [png(i) for i, *_ in mine]} | {
                c: [f(y, a) for _, y, a, _ in mine] for c, f in columns.items()
            }
            write_parquet(place / f"{part}-{s:05d}-of-{shards:05d}.parquet", values)


BLOND = {"Blond_Hair": lambda y, a: bool(y), "Male": lambda y, a: bool(a)}
HUB = ("train", "validation", "test")
BIRD = "001.Albatross/bird_{:04d}.jpg"
WATERBIRDS = "waterbird_complete95_forest2water2"


# Sets with domains: two images of each class that is listed, numbered in the order of domain, class, file

TREES = {
    "pacs": (tuple(domains.PACS.official), domains.ANIMALS),
    "vlcs": (tuple(domains.VLCS.official), domains.SCENES),
    "officehome": (tuple(domains.OFFICEHOME.official), domains.OFFICE),
}


def folders(place, name, spell=lambda text: text, per_class=2):
    names, classes = TREES[name]
    i = 0
    for domain in names:
        for label in classes:
            for k in range(per_class):
                i += 1
                write(place / spell(domain) / label / f"pic_{k:03d}.jpg", png(i))
    write(place / spell(names[0]) / classes[0] / "Thumbs.db", b"no image")


def parquet_domains(place, name, spell=lambda text: text):
    """Rows in another order than the folders', with class names in another order too."""
    names, classes = TREES[name]
    shown = [spell(c) for c in reversed(classes)]
    rows = [(d, c, k) for k in range(2) for c in range(len(classes)) for d in range(len(names))]
    values = {
        "image": [png(1 + k + 2 * c + 2 * len(classes) * d) for d, c, k in rows],
        "domain": [names[d] for d, _, _ in rows],
        "label": [len(classes) - 1 - c for _, c, _ in rows],
    }
    write_parquet(place / "train-00000-of-00001.parquet", values, {"label": shown})
