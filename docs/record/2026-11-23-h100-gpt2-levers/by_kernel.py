"""Adds ncu's durations up by kernel: us, launches, kernel."""
import csv, sys
rows = {}
lines = [l for l in open(sys.argv[1]) if l.startswith('"')]
for r in csv.DictReader(lines):
    v = float(r["Metric Value"].replace(",", "")); u = r["Metric Unit"]
    v *= {"ns": 1e-3, "nsecond": 1e-3, "us": 1, "usecond": 1, "ms": 1e3, "msecond": 1e3}[u]
    n, t = rows.get(r["Kernel Name"], (0, 0)); rows[r["Kernel Name"]] = (n + 1, t + v)
for k, (n, t) in sorted(rows.items(), key=lambda x: -x[1][1]): print(f"{t:9.1f} {n:5d}  {k}")
print(f"{sum(t for _, t in rows.values()):9.1f}")
