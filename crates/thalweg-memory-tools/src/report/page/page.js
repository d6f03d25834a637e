// The page: the choices of the user, and what is redrawn when they change.

const LIGHT = {
  ground: [255, 255, 255], ink: [22, 27, 34], muted: [96, 105, 118], accent: [64, 132, 244],
  other: [172, 181, 193], free: [228, 232, 238], highlight: [20, 24, 31], bad: [208, 40, 48],
  edge: [120, 130, 144],
};
const DARK = {
  ground: [21, 25, 32], ink: [232, 236, 242], muted: [146, 156, 170], accent: [86, 150, 255],
  other: [92, 102, 116], free: [44, 50, 60], highlight: [255, 255, 255], bad: [255, 98, 98],
  edge: [150, 160, 174],
};

/** Colours of further curves, which are distinguished from those of the groups by their dashes. */
const CURVE_HUES = [2, 1, 4, 3, 6, 8, 9, 5];

class Page {
  constructor(meta) {
    this.meta = meta;
    this.stacks = new Stacks(meta);
    this.devices = [];
    this.tip = new Tip();
    this.filter = { stream: null, pool: null, category: null };
    this.words = [];
    this.kept = NO_OWNER;
    this.litGroup = null;
    this.lit = null;
    this.chosenTheme = null;
    this.theme = this.currentTheme();
    byId("title").textContent = meta.title;
    fillChoice("device", meta.devices.map((device, number) => [number, device.name]));
    this.chart = new Chart(this);
    this.overview = new Overview(this);
    this.map = new SegmentMap(this);
    this.flame = new Flame(this);
    this.events = new EventList(this);
    this.stale = new Set();
    this.listen();
  }

  // ---- what is shown

  chooseDevice(number) {
    this.devices[number] ??= new Device(this.meta.devices[number], number);
    this.device = this.devices[number];
    const { device } = this;
    byId("device").value = String(number);
    const names = (list) => [["", "all"], ...list.map((name, index) => [index, name])];
    fillChoice("stream", names(device.streams), device.streams.length > 1);
    fillChoice("pool", names(device.pools), device.pools.length > 1);
    fillChoice("category", names(this.meta.categories), this.meta.categories.length > 1);
    byId("axis").closest("label").hidden = !device.hasTimes;
    byId("scrub").max = String(device.never - 1);
    this.filter = { stream: null, pool: null, category: null };
    this.kept = NO_OWNER;
    this.litGroup = null;
    this.axis = new Axis(device, byId("axis").value);
    showFigures(device);
    showStages(this);
    showSettings(this);
    showDetail(this);
    this.chooseGrouping(this.groups ? this.groups.kind : this.usefulGrouping());
    this.flame.path = [];
    this.moment = this.telling();
    this.showAll();
  }

  /** The moment at which a device is opened: where memory ran out first, otherwise the peak. */
  telling() {
    const failure = this.device.marks.find((mark) => mark.kind === "oom");
    return failure ? clamp(failure.position, 0, this.device.never - 1) : this.profile.peak;
  }

  /** The stack of a block in one line. */
  placeText(block) {
    const stack = this.device.blocks.stack[block];
    const cause = stack === 0 ? -1 : this.stacks.cause(stack - 1);
    return cause < 0 ? "no stack recorded" : shortFrame(this.stacks.frameText(cause));
  }

  /** By line of code if there are stacks; otherwise by something that distinguishes the blocks. */
  usefulGrouping() {
    if (this.device.blocks.stack.some((stack) => stack > 0)) return "cause";
    return this.meta.categories.length > 1 ? "category" : "size";
  }

  chooseGrouping(kind) {
    this.groups = new Groups(this.device, this.stacks, this.meta.categories, kind);
    byId("grouping").value = kind;
    this.litGroup = null;
    this.applyFilter();
  }

  /** After a change of filter or search: updates the blocks that pass, their curves and their colours. */
  applyFilter() {
    const matches = this.words.length > 0 ? this.stacks.matches(this.words) : null;
    const isOnly = byId("only").checked;
    this.profile = new Profile(this.device, this.filter, isOnly ? matches : null);
    this.stackMatches = isOnly ? null : matches;
    this.groups.assignHues(this.profile.peak, this.profile.passes);
    this.makeCurves();
    this.applyLight();
    this.sayMatches(matches);
    this.redraw("all");
  }

  /** Which blocks are lit: those of the chosen group, or those that the search finds; all if there is neither. */
  applyLight() {
    const { blocks } = this.device;
    const { litGroup, stackMatches, groups } = this;
    this.lit = null;
    if (litGroup !== null) {
      this.lit = Uint8Array.from(groups.of, (group) => (group === litGroup ? 1 : 0));
    } else if (stackMatches) {
      this.lit = Uint8Array.from(blocks.stack, (stack) => (stack > 0 ? stackMatches[stack - 1] : 0));
    }
    this.colours = groups.blockColours(this.theme, this.lit);
  }

  /** Shows how much the search found. */
  sayMatches(matches) {
    this.found = null;
    if (matches) {
      const { blocks, never } = this.device;
      const isFound = Uint8Array.from(blocks.stack, (stack, block) =>
        (stack > 0 && matches[stack - 1] === 1 && this.profile.passes[block] === 1 ? 1 : 0));
      const sums = sumOver(never, blocks, isFound);
      const best = firstGreatest(sums);
      this.found = { blocks: isFound.reduce((sum, one) => sum + one, 0), peak: sums[best], position: best };
    }
    byId("matches").textContent = !this.found ? ""
      : this.found.blocks === 0 ? "nothing matches"
      : `${countText(this.found.blocks)} blocks, at most ${bytesText(this.found.peak)} live`;
  }

  makeCurves() {
    const shown = new Map((this.curves ?? []).map((curve) => [curve.name, curve.isShown]));
    const kept = (name, usual) => shown.get(name) ?? usual;
    const greatestOf = (pyramid) => (profile, low, high) => pyramid(profile).values[pyramid(profile).greatest(low, high)];
    this.curves = [
      { name: "live", isShown: kept("live", true), width: 1, dash: [], colour: (theme) => theme.edge,
        greatest: greatestOf((profile) => profile.livePyramid) },
      { name: "reserved", isShown: kept("reserved", true), width: 2, dash: [], colour: (theme) => theme.ink,
        greatest: greatestOf((profile) => profile.reservedPyramid) },
      ...this.device.curves.map((curve, number) => ({
        name: curve.isEstimate ? `${curve.name} (estimate)` : curve.name,
        isShown: kept(curve.isEstimate ? `${curve.name} (estimate)` : curve.name, true),
        width: 2,
        dash: curve.isEstimate ? [2, 4] : [9, 4],
        colour: () => HUES[CURVE_HUES[number % CURVE_HUES.length]],
        greatest: (_, low, high) => greatestStep(curve, low, high),
      })),
    ];
    this.showCurves();
  }

  /** The curves as a legend that switches them on and off. */
  showCurves() {
    byId("curves").replaceChildren(...this.curves.map((curve) => {
      const sample = element("span", "sample");
      sample.style.borderTop = `${curve.width}px ${curve.dash.length > 0 ? "dashed" : "solid"} ${css(curve.colour(this.theme))}`;
      const box = element("input", "");
      box.type = "checkbox";
      box.checked = curve.isShown;
      box.addEventListener("change", () => {
        curve.isShown = box.checked;
        this.redraw("overlay");
      });
      return element("label", "check", box, sample, curve.name);
    }));
    const { freed, end } = this.device.blocks;
    // An ordinary free is complete with the next event.
    if (freed.some((position, block) => end[block] - position > 1)) {
      byId("curves").append(element("span", "hint", "dim blocks: freed, but waiting for other streams"));
    }
  }

  // ---- view and moment

  get wholeHeight() {
    const curves = this.device.curves.map((curve) => curve.bytes.reduce((most, bytes) => Math.max(most, bytes), 0));
    const most = Math.max(this.profile.peakLive, this.profile.peakReserved, ...curves, 1);
    const gpu = this.device.gpuBytes;
    return Math.max(most, gpu !== null && gpu < 1.5 * most ? gpu : 0) * 1.05;
  }

  showAll() {
    this.view = { x0: this.axis.begin, x1: this.axis.end, y0: 0, y1: this.wholeHeight };
    this.redraw("all");
  }

  setTime(x0, x1) {
    const { axis, view } = this;
    const span = clamp(x1 - x0, axis.least, axis.end - axis.begin);
    const middle = (x0 + x1) / 2;
    view.x0 = clamp(middle - span / 2, axis.begin, axis.end - span);
    view.x1 = view.x0 + span;
    this.move();
  }

  setBytes(y0, y1) {
    const span = clamp(y1 - y0, 2048, this.wholeHeight);
    this.view.y0 = clamp(y0, 0, this.wholeHeight - span);
    this.view.y1 = this.view.y0 + span;
    this.move();
  }

  zoomTime(around, factor) {
    const { x0, x1 } = this.view;
    // At the limit the view must not drift.
    const least = this.axis.least / (x1 - x0);
    const most = (this.axis.end - this.axis.begin) / (x1 - x0);
    const by = clamp(factor, least, most);
    this.setTime(around - (around - x0) * by, around + (x1 - around) * by);
  }

  zoomBytes(around, factor) {
    const { y0, y1 } = this.view;
    this.setBytes(around - (around - y0) * factor, around + (y1 - around) * factor);
  }

  pan(x, y) {
    const { x0, x1, y0, y1 } = this.view;
    if (x !== 0) this.setTime(x0 + x * (x1 - x0), x1 + x * (x1 - x0));
    if (y !== 0) this.setBytes(y0 + y * (y1 - y0), y1 + y * (y1 - y0));
  }

  /** The view is moving: coarse now if necessary, fine when the movement ends. */
  move() {
    this.redraw("moving");
    clearTimeout(this.rest);
    this.rest = setTimeout(() => this.redraw("view"), 120);
  }

  setMoment(position) {
    this.moment = clamp(Math.round(position), 0, this.device.never - 1);
    this.redraw("moment");
  }

  momentText() {
    const { moment, device, profile } = this;
    const live = bytesText(profile.live[moment]);
    const time = device.hasTimes && moment > 0 ? `, ${durationText(device.times[moment - 1])}` : "";
    const place = moment === 0 ? "before the first event" : `after event ${countText(moment)}${time}`;
    return moment === profile.peak ? `At the peak: ${live} live, ${place}` : `${live} live ${place}`;
  }

  // ---- blocks

  keep(owner) {
    this.kept = owner;
    showDetail(this);
    this.redraw("moment");
    this.redraw("colour");
  }

  lightGroup(group) {
    this.litGroup = group;
    this.applyLight();
    this.redraw("moment");
    this.redraw("colour");
  }

  lifeText(block) {
    const { device } = this;
    const { start, freed, end } = device.blocks;
    const from = start[block] === 0 ? "since before the first event" : `from event ${countText(start[block])}`;
    if (end[block] >= device.never) return freed[block] < device.never ? `${from}, freed but pending to the end` : `${from} to the end`;
    const between = start[block] > 0 && device.hasTimes
      ? ` (${durationText(device.times[end[block] - 1] - device.times[start[block] - 1])})` : "";
    const pending = end[block] - freed[block] > 1 ? `, pending from ${countText(freed[block])}` : "";
    return `${from} to ${countText(end[block])}${between}${pending}`;
  }

  /** A block in a few lines. */
  describe(block) {
    const { blocks, streams, pools } = this.device;
    const stack = blocks.stack[block];
    const frames = stack === 0 ? [] : Array.from(this.stacks.frames[stack - 1]);
    const cause = stack === 0 ? -1 : this.stacks.cause(stack - 1);
    const start = Math.max(0, frames.indexOf(cause));
    return [
      `${bytesText(blocks.size[block])}  ${this.meta.categories[blocks.category[block]]}`,
      `${this.lifeText(block)}; ${streams[blocks.stream[block]]}, ${pools[blocks.pool[block]]}`,
      ...frames.slice(start, start + 6).map((frame) => this.stacks.frameText(frame)),
      frames.length > start + 6 ? `… ${frames.length - start - 6} more: click` : "",
    ];
  }

  // ---- drawing

  /** Requests drawing of something in the next frame: "all", "view", "moving", "moment", "colour" or "overlay". */
  redraw(what) {
    if (this.stale.size === 0) requestAnimationFrame(() => this.drawStale());
    this.stale.add(what);
  }

  drawStale() {
    const { stale } = this;
    if (stale.size === 0 || !this.view) return;
    this.stale = new Set();
    const has = (...names) => names.some((name) => stale.has(name));
    if (has("all", "view")) this.chart.draw(false);
    else if (has("moving")) this.chart.draw(true);
    else if (has("colour")) this.chart.colour();
    else if (has("overlay", "moment")) this.chart.drawOverlay();
    if (has("all", "view", "moving", "moment")) this.overview.draw();
    if (has("all", "moment")) {
      this.groupRows = showGroups(this);
      this.map.draw();
      this.flame.draw();
      this.events.draw();
      byId("scrub").value = String(this.moment);
      byId("scrub").setAttribute("aria-valuetext", this.momentText());
    }
  }

  currentTheme() {
    const isDark = this.chosenTheme ? this.chosenTheme === "dark" : matchMedia("(prefers-color-scheme: dark)").matches;
    document.documentElement.dataset.theme = isDark ? "dark" : "light";
    return isDark ? DARK : LIGHT;
  }

  chooseTheme(name) {
    this.chosenTheme = name;
    this.theme = this.currentTheme();
    this.applyLight();
    this.showCurves();
    this.redraw("all");
  }

  // ---- hands

  listen() {
    const onChange = (id, then) => byId(id).addEventListener("change", (event) => then(event.target.value));
    fillChoice("grouping", GROUPINGS);
    onChange("device", (value) => this.chooseDevice(Number(value)));
    onChange("grouping", (value) => this.chooseGrouping(value));
    onChange("axis", (value) => {
      const [from, to] = [this.axis.positionAt(this.view.x0), this.axis.positionAt(this.view.x1)];
      this.axis = new Axis(this.device, value);
      this.setTime(this.axis.coordinate(from), this.axis.coordinate(to));
    });
    for (const name of ["stream", "pool", "category"]) {
      onChange(name, (value) => this.chooseFilter(name, value === "" ? null : Number(value)));
    }
    byId("only").addEventListener("change", () => this.applyFilter());
    let delay = 0;
    byId("search").addEventListener("input", (event) => {
      clearTimeout(delay);
      delay = setTimeout(() => this.search(event.target.value), 150);
    });
    byId("scrub").addEventListener("input", (event) => this.setMoment(Number(event.target.value)));
    byId("theme").addEventListener("click", () => this.chooseTheme(this.theme === DARK ? "light" : "dark"));
    byId("help-button").addEventListener("click", () => {
      byId("help").hidden = !byId("help").hidden;
      byId("help-button").setAttribute("aria-expanded", String(!byId("help").hidden));
    });
    matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => this.chooseTheme(this.chosenTheme));
    new ResizeObserver(() => this.redraw("all")).observe(byId("chart"));
    document.addEventListener("keydown", (event) => this.onKey(event));
  }

  chooseFilter(name, value) {
    this.filter = { ...this.filter, [name]: value };
    this.litGroup = null;
    this.applyFilter();
  }

  search(text) {
    this.words = text.toLowerCase().split(/\s+/).filter((word) => word !== "");
    this.litGroup = null;
    this.applyFilter();
  }

  onKey(event) {
    const isTyping = event.target.matches("input[type=search], select");
    if (event.key === "Escape") {
      byId("search").value = "";
      this.keep(NO_OWNER);
      this.search("");
      byId("chart").focus();
      return;
    }
    if (isTyping || event.ctrlKey || event.metaKey || event.altKey) return;
    const isArrow = event.key.startsWith("Arrow");
    // Arrows belong to the slider and to scrolling unless the chart has the focus.
    if (isArrow && document.activeElement !== byId("chart")) return;
    const act = this.keyAction(event);
    if (!act) return;
    event.preventDefault();
    act();
  }

  keyAction(event) {
    const { view, axis } = this;
    const at = axis.coordinate(this.moment);
    const around = at > view.x0 && at < view.x1 ? at : (view.x0 + view.x1) / 2;
    const stride = (axis.positionAt(view.x1) - axis.positionAt(view.x0)) / 10;
    switch (event.key) {
      case "+": case "=": return () => this.zoomTime(around, 0.7);
      case "-": case "_": return () => this.zoomTime(around, 1 / 0.7);
      case "ArrowLeft": return () => this.pan(-0.1, 0);
      case "ArrowRight": return () => this.pan(0.1, 0);
      case "ArrowUp": return () => (event.shiftKey ? this.zoomBytes(view.y0, 0.8) : this.pan(0, 0.1));
      case "ArrowDown": return () => (event.shiftKey ? this.zoomBytes(view.y0, 1.25) : this.pan(0, -0.1));
      case ",": return () => this.setMoment(this.moment - 1);
      case ".": return () => this.setMoment(this.moment + 1);
      case "<": return () => this.setMoment(this.moment - stride);
      case ">": return () => this.setMoment(this.moment + stride);
      case "p": case "P": return () => this.setMoment(this.profile.peak);
      case "0": return () => this.showAll();
      case "/": return () => byId("search").focus();
      case "?": return () => byId("help-button").click();
      default: return null;
    }
  }
}

/** The maximum of a curve in steps from position `low` up to before `high`. */
function greatestStep(curve, low, high) {
  let step = Math.max(0, upperBound(curve.positions, low) - 1);
  let most = curve.positions.length > 0 && curve.positions[step] < high ? curve.bytes[step] : 0;
  for (step += 1; step < curve.positions.length && curve.positions[step] < high; step += 1) {
    most = Math.max(most, curve.bytes[step]);
  }
  return most;
}
