// The start of the page, and its self-test: with `?selftest` after the address it operates itself as a person would and
// writes its results into the element `self-test`, as JSON. With `?selftest=frames` it also measures frames.

/** How many different blocks the picture shows. */
function paintedBlocks(page) {
  return new Set(page.chart.painter.owners.map((owner) => Math.abs(owner)).filter((owner) => owner !== NO_OWNER)).size;
}

/** The share of the plot's pixels that belong to a block. */
function paintedShare(page) {
  const { owners } = page.chart.painter;
  return owners.reduce((sum, owner) => sum + (owner === NO_OWNER ? 0 : 1), 0) / owners.length;
}

function drawNow(page) {
  page.redraw("all");
  page.drawStale();
}

/** The values that the page computes for a device from its blocks and segments, and the effects of operating it. */
function testDevice(page, number) {
  page.chooseDevice(number);
  page.setMoment(page.profile.peak);
  drawNow(page);
  const { device, profile } = page;
  const found = {
    name: device.name,
    figures: Array.from(document.querySelectorAll("#figures .figure"), (tile) => [
      tile.dataset.key, tile.querySelector(".value").title || tile.querySelector(".value").textContent,
    ]),
    events: device.events,
    blocks: device.blocks.count,
    peak_live_bytes: profile.peakLive,
    peak_live_position: profile.peak,
    peak_reserved_bytes: profile.peakReserved,
    final_live_bytes: profile.live[device.never - 1],
    groups_at_peak: page.groupRows.map(({ group, bytes, count }) => [page.groups.name(group), bytes, count]),
    mapped_segments: page.map.spots.length,
    painted_blocks: paintedBlocks(page),
    painted_share: paintedShare(page),
    curves: page.curves.map((curve) => [curve.name, curve.greatest(profile, 0, device.never)]),
  };
  page.zoomTime(page.axis.coordinate(profile.peak), 0.1);
  page.stale.clear();
  page.chart.draw(false);
  found.zoomed_span = page.view.x1 - page.view.x0;
  found.zoomed_blocks = paintedBlocks(page);
  page.showAll();
  testFilters(page, found);
  testSearch(page, found);
  page.setMoment(0);
  drawNow(page);
  found.first_live_bytes = page.profile.live[0];
  found.first_mapped_segments = page.map.spots.length;
  page.setMoment(page.profile.peak);
  testTables(page, found);
  return found;
}

/** The flame graph and the lists below the pictures. */
function testTables(page, found) {
  byId("flame-panel").open = true;
  byId("events-panel").open = true;
  drawNow(page);
  const [root, ...frames] = page.flame.spots;
  found.flame_bytes = root ? root.node.bytes : 0;
  found.flame_widest = frames.length > 0 ? frames.find((spot) => spot.depth === 1).node.bytes : 0;
  if (frames.length > 0) {
    page.flame.path = frames[0].path;
    page.flame.draw();
    found.flame_chosen = page.flame.spots[1].node.bytes;
    page.flame.path = [];
  }
  found.events_shown = page.events.shown;
  page.events.search("free_completed");
  found.events_freed = Array.from(byId("events-rows").rows).every((row) => row.cells[2].textContent === "free_completed");
  page.events.search("no such thing anywhere");
  found.events_none = page.events.shown;
  page.events.search("");
  found.stages = Array.from(byId("stages-rows").rows, (row) => row.cells[0].textContent);
  found.settings = byId("settings-rows").rows.length;
  byId("flame-panel").open = false;
  byId("events-panel").open = false;
}

/** The peak of each single stream, pool and category. */
function testFilters(page, found) {
  for (const [name, list] of [["stream", page.device.streams], ["pool", page.device.pools], ["category", page.meta.categories]]) {
    found[`peak_by_${name}`] = list.map((_, index) => {
      page.chooseFilter(name, index);
      return page.profile.peakLive;
    });
    page.chooseFilter(name, null);
  }
}

/** Searches for the line of code that has the most memory at the peak, first lit, then as the only one. */
function testSearch(page, found) {
  const { stack } = page.device.blocks;
  if (page.groups.kind !== "cause" || page.groupRows.length === 0 || !stack.some((one) => one > 0)) return;
  const name = page.groups.name(page.groupRows[0].group);
  page.search(name);
  drawNow(page);
  found.search = { text: name, ...page.found, lit: page.lit.reduce((sum, one) => sum + one, 0) };
  byId("only").checked = true;
  page.applyFilter();
  drawNow(page);
  found.search.only_peak = page.profile.peakLive;
  byId("only").checked = false;
  page.search("");
}

/** Milliseconds per frame while zooming in and moving, as a person does: the median and the worst. */
function testFrames(page) {
  const sorted = (times) => times.sort((a, b) => a - b);
  const summary = (times) => ({ median: sorted(times)[times.length >> 1], worst: times[times.length - 1] });
  page.showAll();
  const frame = (act) => {
    const began = performance.now();
    act();
    page.stale.clear();
    page.chart.draw(true);
    page.overview.draw();
    // A read makes the browser finish postponed work.
    page.chart.picture.getContext("2d").getImageData(0, 0, 1, 1);
    return performance.now() - began;
  };
  const at = page.axis.coordinate(page.profile.peak);
  const steps = Array.from({ length: 60 });
  const result = { whole: summary(steps.map(() => frame(() => page.pan(0.001, 0)))) };
  result.zoom = summary(steps.map(() => frame(() => page.zoomTime(at, 0.88))));
  result.pan = summary(steps.map((_, step) => frame(() => page.pan(step < 30 ? 0.05 : -0.05, 0))));
  result.zoom_out = summary(steps.map(() => frame(() => page.zoomTime(at, 1 / 0.88))));
  page.showAll();
  return result;
}

function start() {
  const began = performance.now();
  const page = new Page(JSON.parse(byId("meta").textContent));
  const wanted = new URLSearchParams(location.search).get("selftest");
  if (page.meta.devices.length === 0) {
    byId("moment").textContent = "the snapshot has no device";
    return;
  }
  // The device whose memory ran out is the interesting one.
  const failed = page.meta.devices.findIndex((device) => device.marks.some((mark) => mark.kind === "oom"));
  page.chooseDevice(Math.max(0, failed));
  drawNow(page);
  const firstDraw = performance.now() - began;
  if (wanted === null) return;
  const out = byId("self-test");
  try {
    const opened = { device: byId("device").value, moment: page.moment };
    const result = { opened, first_draw_ms: firstDraw, since_navigation_ms: performance.now() };
    if (wanted === "frames") result.frames = testFrames(page);
    result.devices = page.meta.devices.map((_, number) => testDevice(page, number));
    out.textContent = JSON.stringify(result);
  } catch (error) {
    out.textContent = JSON.stringify({ error: String(error && error.stack) });
  }
}

start();
