// Numbers in human-readable form, and small helpers for the document.

const UNITS = ["B", "KiB", "MiB", "GiB", "TiB"];

/** 1536 as "1.50 KiB", in the format of the command. */
function bytesText(bytes) {
  let value = Math.abs(bytes);
  let unit = 0;
  // If rounding would write 1024.0, the next unit is used.
  while (value >= (unit === 0 ? 1024 : 1023.95) && unit < UNITS.length - 1) {
    value /= 1024;
    unit += 1;
  }
  const digits = unit === 0 ? 0 : value < 10 ? 2 : 1;
  return `${bytes < 0 ? "-" : ""}${value.toFixed(digits)} ${UNITS[unit]}`;
}

/** 1234567 as "1,234,567". */
function countText(count) {
  return String(Math.round(count)).replace(/\B(?=(\d{3})+(?!\d))/g, ",");
}

function shareText(share) {
  return `${(share * 100).toFixed(1)} %`;
}

/** A span of microseconds. */
function durationText(microseconds) {
  const value = Math.abs(microseconds);
  if (value < 1e3) return `${value} µs`;
  if (value < 1e6) return `${(value / 1e3).toPrecision(3)} ms`;
  if (value < 120e6) return `${(value / 1e6).toPrecision(3)} s`;
  return `${Math.floor(value / 60e6)} min ${Math.round((value % 60e6) / 1e6)} s`;
}

/** Lets a click on a row, and Enter or a space while it has the focus, do something. */
function onChoice(row, act) {
  row.tabIndex = 0;
  row.addEventListener("click", act);
  row.addEventListener("keydown", (event) => {
    if (event.key !== "Enter" && event.key !== " ") return;
    event.preventDefault();
    act();
  });
}

/** An element with a class and content: texts and elements. Texts never become markup. */
function element(tag, className, ...content) {
  const made = document.createElement(tag);
  if (className) made.className = className;
  made.append(...content);
  return made;
}

function byId(id) {
  return document.getElementById(id);
}

/** The first index whose value is greater than `wanted`, in ascending values. */
function upperBound(values, wanted) {
  let low = 0;
  let high = values.length;
  while (low < high) {
    const middle = (low + high) >>> 1;
    if (values[middle] <= wanted) low = middle + 1;
    else high = middle;
  }
  return low;
}

function clamp(value, low, high) {
  return Math.max(low, Math.min(high, value));
}

/** A round step such that `span` has about `wanted` of them; powers of two times 1, 2 or 5 for bytes. */
function roundStep(span, wanted, base) {
  const rough = Math.max(span / wanted, 1e-9);
  const power = base === 2 ? 2 ** Math.floor(Math.log2(rough)) : 10 ** Math.floor(Math.log10(rough));
  for (const factor of base === 2 ? [1, 2] : [1, 2, 5, 10]) {
    if (power * factor >= rough) return power * factor;
  }
  return power * base;
}
