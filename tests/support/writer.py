"""Rewrites a table in every way for some seconds: `writer.py FOLDER SECONDS`; prints the last generation."""

import sys
import time
from datetime import timedelta

import lancedb


def rows(generation, count=40):
    return [
        {
            "id": f"{generation}-{n}",
            "text": f"needle of generation {generation}",
            "generation": generation,
            "vector": [1.0, float(n)],
        }
        for n in range(count)
    ]


def main():
    folder, seconds = sys.argv[1], float(sys.argv[2])
    database = lancedb.connect(folder)
    table = database.create_table("documents", rows(0), mode="overwrite")
    print("ready", flush=True)
    end = time.monotonic() + seconds
    generation = 0
    while time.monotonic() < end:
        generation += 1
        time.sleep(0.02)  # no program writes without a breath
        step = generation % 5
        if step == 0:
            database.drop_table("documents")
            table = database.create_table("documents", rows(generation))
        elif step == 1:
            table = database.create_table("documents", rows(generation), mode="overwrite")
        elif step == 2:
            table.add(rows(generation, 5))
        elif step == 3:
            table.delete(f"generation = {generation - 1}")
            table.add(rows(generation, 3))
        else:
            table.optimize(cleanup_older_than=timedelta(0), delete_unverified=True)
    table.add(rows(10**6, 1))
    print(generation, flush=True)


if __name__ == "__main__":
    main()
