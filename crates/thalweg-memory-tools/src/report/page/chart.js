// The chart: the painter's picture, curves, axes, the chosen moment, and the mouse and keyboard input that moves all of these.
// Below it the overview, the entire run in a strip.

const MARGIN = { left: 68, right: 10, top: 14, bottom: 22 };

/** The number of pixels of a picture above which a high-resolution display is not used fully. */
const MOST_PIXELS = 3e6;

/** A frame that takes longer, in milliseconds, makes the next ones coarser during the movement. */
const SLOW_FRAME = 14;

/** Fits a canvas to its element; returns its context in CSS pixels. */
function fitCanvas(canvas, width, height, ratio) {
  const [wide, high] = [Math.round(width * ratio), Math.round(height * ratio)];
  if (canvas.width !== wide || canvas.height !== high) {
    canvas.width = wide;
    canvas.height = high;
  }
  const context = canvas.getContext("2d");
  context.setTransform(ratio, 0, 0, ratio, 0, 0);
  context.clearRect(0, 0, width, height);
  return context;
}

/** Calls `draw` with the pieces of a dashed line, which are at the same places whatever part of it is drawn. */
function dashes(from, to, [on, off], draw) {
  if (!off) {
    draw(from, to);
    return;
  }
  for (let at = Math.floor(from / (on + off)) * (on + off); at < to; at += on + off) {
    const [begin, end] = [Math.max(at, from), Math.min(at + on, to)];
    if (end > begin) draw(begin, end);
  }
}

class Chart {
  constructor(page) {
    this.page = page;
    this.box = byId("chart");
    this.picture = this.box.querySelector(".picture");
    this.overlay = this.box.querySelector(".overlay");
    this.painter = new Painter();
    this.scratch = document.createElement("canvas");
    /** Device pixels per column during a movement. */
    this.coarseness = 1;
    this.hovered = NO_OWNER;
    this.listen();
  }

  /** The position of the plot in the element. Asking the document for it is too slow for every point. */
  measure() {
    this.plot = {
      left: MARGIN.left,
      top: MARGIN.top,
      width: Math.max(50, this.box.clientWidth - MARGIN.left - MARGIN.right),
      height: Math.max(50, this.box.clientHeight - MARGIN.top - MARGIN.bottom),
    };
    return this.plot;
  }

  /** Repaints everything; returns how many milliseconds that took. */
  draw(isMoving) {
    const began = performance.now();
    const plot = this.measure();
    const { painter, page } = this;
    const ratio = Math.min(devicePixelRatio || 1, Math.sqrt(MOST_PIXELS / (plot.width * plot.height)));
    this.ratio = ratio;
    this.step = isMoving ? this.coarseness : 1;
    painter.resize(Math.ceil((plot.width * ratio) / this.step), Math.round(plot.height * ratio));
    painter.layOut(page.profile, page.axis, page.view);
    this.measureCurves();
    this.colour();
    const took = performance.now() - began;
    if (took > SLOW_FRAME && this.coarseness < 4) this.coarseness *= 2;
    if (took < SLOW_FRAME / 4 && this.coarseness > 1) this.coarseness /= 2;
    return took;
  }

  /** Colours the picture that was laid out, and draws the overlays. */
  colour() {
    const { plot, painter, page } = this;
    const image = painter.colour(page.colours, page.theme, this.hovered || page.kept);
    if (this.scratch.width !== painter.width || this.scratch.height !== painter.height) {
      this.scratch.width = painter.width;
      this.scratch.height = painter.height;
    }
    this.scratch.getContext("2d").putImageData(image, 0, 0);
    const context = fitCanvas(this.picture, this.box.clientWidth, this.box.clientHeight, this.ratio);
    context.imageSmoothingEnabled = false;
    context.drawImage(this.scratch, plot.left, plot.top, plot.width, plot.height);
    this.drawOverlay();
  }

  /** For each column the maximum of the live memory, the reserved memory, and each further curve. */
  measureCurves() {
    const { page, painter } = this;
    const { profile, axis, view } = page;
    const { width } = painter;
    const step = (view.x1 - view.x0) / width;
    this.lines = page.curves.map((curve) => ({ curve, values: new Float64Array(width), at: 0 }));
    let low = axis.positionAt(view.x0);
    for (let column = 0; column < width; column += 1) {
      const next = axis.positionAt(view.x0 + (column + 1) * step);
      const high = Math.max(low + 1, next);
      for (const line of this.lines) line.values[column] = line.curve.greatest(profile, low, high);
      low = next;
    }
  }

  drawOverlay() {
    const { plot, page } = this;
    const context = fitCanvas(this.overlay, this.box.clientWidth, this.box.clientHeight, devicePixelRatio || 1);
    this.drawAxes(context);
    context.save();
    context.beginPath();
    context.rect(plot.left, 0, plot.width, plot.top + plot.height);
    context.clip();
    this.drawPanel(context);
    this.lines.forEach(({ curve, values }) => curve.isShown && this.drawLine(context, curve, values));
    this.drawMarks(context);
    const x = this.toX(page.axis.coordinate(page.moment) + (page.axis.isTime ? 0 : 0.5));
    context.fillStyle = css(page.theme.ink, 0.85);
    context.fillRect(Math.round(x) - 0.75, plot.top - 6, 1.5, plot.height + 6);
    context.beginPath();
    context.moveTo(x - 6, plot.top - 12);
    context.lineTo(x + 6, plot.top - 12);
    context.lineTo(x, plot.top - 3);
    context.fill();
    context.restore();
  }

  drawAxes(context) {
    const { plot, page } = this;
    const { view, theme, axis } = page;
    context.font = "11px system-ui, sans-serif";
    context.fillStyle = css(theme.muted);
    context.textAlign = "right";
    context.textBaseline = "middle";
    const step = roundStep(view.y1 - view.y0, plot.height / 46, 2);
    for (let bytes = Math.ceil(view.y0 / step) * step; bytes <= view.y1; bytes += step) {
      const y = Math.round(this.toY(bytes)) + 0.5;
      context.fillStyle = css(theme.ink, 0.1);
      context.fillRect(plot.left, y, plot.width, 1);
      context.fillStyle = css(theme.muted);
      context.fillText(bytesText(bytes), plot.left - 8, y);
    }
    context.textAlign = "center";
    context.textBaseline = "top";
    const stride = Math.max(axis.isTime ? 0 : 1, roundStep(view.x1 - view.x0, plot.width / 110, 10));
    for (let at = Math.ceil(view.x0 / stride) * stride; at <= view.x1; at += stride) {
      const x = this.toX(at);
      context.fillRect(Math.round(x), plot.top + plot.height, 1, 4);
      const half = context.measureText(axis.text(at)).width / 2;
      if (x + half <= plot.left + plot.width + MARGIN.right) context.fillText(axis.text(at), x, plot.top + plot.height + 7);
    }
  }

  drawPanel(context) {
    const { gpuBytes } = this.page.device;
    if (gpuBytes === null) return;
    const y = this.toY(gpuBytes);
    context.fillStyle = css(this.page.theme.bad);
    context.fillRect(this.plot.left, y - 1, this.plot.width, 1.5);
    context.textAlign = "left";
    context.textBaseline = "bottom";
    const text = `the GPU: ${bytesText(gpuBytes)}`;
    // With a rim in the background colour, so that it can be read over blocks of any colour.
    context.strokeStyle = css(this.page.theme.ground, 0.9);
    context.lineWidth = 4;
    context.lineJoin = "round";
    context.strokeText(text, this.plot.left + 6, y - 3);
    context.fillText(text, this.plot.left + 6, y - 3);
  }

  /** Draws a curve in steps, as bars: a path of a thousand corners takes many times as long. */
  drawLine(context, curve, values) {
    const { plot } = this;
    const { width, dash } = curve;
    context.fillStyle = css(curve.colour(this.page.theme));
    const step = plot.width / values.length;
    let from = 0;
    for (let column = 1; column <= values.length; column += 1) {
      if (column < values.length && values[column] === values[from]) continue;
      const y = this.toY(values[from]);
      dashes(plot.left + from * step, plot.left + column * step + width / 2, dash, (begin, end) =>
        context.fillRect(begin, y - width / 2, end - begin, width));
      if (column < values.length) {
        const next = this.toY(values[column]);
        dashes(Math.min(y, next), Math.max(y, next), dash, (begin, end) =>
          context.fillRect(plot.left + column * step - width / 2, begin, width, end - begin));
      }
      from = column;
    }
  }

  drawMarks(context) {
    const { plot, page } = this;
    this.marks = [];
    let previous = -9;
    for (const mark of page.device.marks) {
      const x = this.toX(page.axis.coordinate(mark.position));
      const isGrave = mark.kind === "oom";
      if (x < plot.left || x > plot.left + plot.width || (x - previous < 3 && !isGrave)) continue;
      previous = x;
      this.marks.push({ x, mark });
      context.fillStyle = css(isGrave ? page.theme.bad : page.theme.muted, isGrave ? 1 : 0.7);
      context.fillRect(x - 0.75, isGrave ? plot.top : plot.top - 5, 1.5, isGrave ? plot.height : 5);
      if (isGrave) {
        context.textAlign = x > plot.left + plot.width - 90 ? "right" : "left";
        context.textBaseline = "top";
        context.font = "600 11px system-ui, sans-serif";
        context.fillText("out of memory", x + (context.textAlign === "right" ? -5 : 5), plot.top + 2);
      }
    }
  }

  toX(coordinate) {
    const { view } = this.page;
    return this.plot.left + ((coordinate - view.x0) / (view.x1 - view.x0)) * this.plot.width;
  }

  toY(bytes) {
    const { view } = this.page;
    return this.plot.top + (1 - (bytes - view.y0) / (view.y1 - view.y0)) * this.plot.height;
  }

  /** Returns what is at a point of the element: the coordinate, the bytes, the share of the plot, the block plus one. */
  pick(event) {
    const { plot, page, painter } = this;
    const box = this.box.getBoundingClientRect();
    const x = (event.clientX - box.left - plot.left) / plot.width;
    const y = (event.clientY - box.top - plot.top) / plot.height;
    const column = Math.floor(x * painter.width);
    const owner = painter.ownerAt(column, Math.floor(y * painter.height));
    const { x0, x1, y0, y1 } = page.view;
    const isInside = x >= 0 && x < 1;
    return {
      x,
      y,
      owner,
      coordinate: x0 + x * (x1 - x0),
      bytes: y1 - y * (y1 - y0),
      position: isInside ? painter.samples[column] : page.axis.positionAt(x0 + x * (x1 - x0)),
    };
  }

  listen() {
    const { box, page } = this;
    box.addEventListener("wheel", (event) => {
      event.preventDefault();
      const { coordinate, bytes } = this.pick(event);
      const delta = (event.deltaY || event.deltaX) * (event.deltaMode === 1 ? 20 : 1);
      const factor = Math.exp(clamp(delta, -240, 240) * 0.0022);
      if (event.shiftKey) page.zoomBytes(bytes, factor);
      else if (Math.abs(event.deltaX) > Math.abs(event.deltaY)) page.pan(event.deltaX / this.plot.width, 0);
      else page.zoomTime(coordinate, factor);
    }, { passive: false });
    box.addEventListener("pointerdown", (event) => {
      if (event.button !== 0) return;
      box.setPointerCapture(event.pointerId);
      this.grip = { x: event.clientX, y: event.clientY, moved: false };
    });
    box.addEventListener("pointermove", (event) => this.onMove(event));
    box.addEventListener("pointerup", (event) => {
      if (this.grip && !this.grip.moved) {
        const { owner, position } = this.pick(event);
        page.keep(owner);
        page.setMoment(position);
      }
      this.grip = null;
    });
    box.addEventListener("pointercancel", () => { this.grip = null; });
    box.addEventListener("pointerleave", () => this.hover(NO_OWNER));
    box.addEventListener("dblclick", () => page.showAll());
  }

  onMove(event) {
    const { grip, page, plot } = this;
    if (grip) {
      const [dx, dy] = [event.clientX - grip.x, event.clientY - grip.y];
      if (!grip.moved && Math.hypot(dx, dy) < 4) return;
      Object.assign(grip, { x: event.clientX, y: event.clientY, moved: true });
      page.pan(-dx / plot.width, dy / plot.height);
      return;
    }
    const { owner, x } = this.pick(event);
    this.hover(owner);
    const pixel = plot.left + x * plot.width;
    const near = owner === NO_OWNER && this.marks && this.marks.find((mark) => Math.abs(mark.x - pixel) < 5);
    if (owner !== NO_OWNER) page.tip.show(event, page.describe(owner - 1));
    else if (near) page.tip.show(event, [near.mark.kind === "oom" ? "out of memory" : near.mark.kind, near.mark.text]);
    else page.tip.hide();
  }

  hover(owner) {
    if (owner === NO_OWNER) this.page.tip.hide();
    if (owner === this.hovered) return;
    this.hovered = owner;
    this.page.redraw("colour");
  }
}

/** The entire run in a strip, with the view as a window in it. */
class Overview {
  constructor(page) {
    this.page = page;
    this.box = byId("overview");
    this.canvas = this.box.querySelector("canvas");
    this.listen();
  }

  draw() {
    const { page, box } = this;
    const { profile, axis, view, theme } = page;
    const [width, height] = [box.clientWidth, box.clientHeight];
    const context = fitCanvas(this.canvas, width, height, devicePixelRatio || 1);
    const [left, right] = [MARGIN.left, width - MARGIN.right];
    const most = Math.max(profile.peakReserved, profile.peakLive, 1) * 1.04;
    const span = axis.end - axis.begin;
    const fill = (pyramid, colour) => {
      context.fillStyle = colour;
      let low = axis.positionAt(axis.begin);
      for (let x = left; x < right; x += 1) {
        const next = axis.positionAt(axis.begin + ((x + 1 - left) / (right - left)) * span);
        const value = pyramid.values[pyramid.greatest(low, Math.max(low + 1, next))];
        context.fillRect(x, height * (1 - value / most), 1, (height * value) / most);
        low = next;
      }
    };
    fill(profile.reservedPyramid, css(theme.ink, 0.16));
    fill(profile.livePyramid, css(theme.accent, 0.75));
    const toX = (coordinate) => left + ((coordinate - axis.begin) / span) * (right - left);
    context.fillStyle = css(theme.ground, 0.66);
    const [from, to] = [toX(view.x0), toX(view.x1)];
    context.fillRect(left, 0, from - left, height);
    context.fillRect(to, 0, right - to, height);
    context.strokeStyle = css(theme.ink, 0.7);
    context.strokeRect(from + 0.5, 0.5, Math.max(2, to - from - 1), height - 1);
    context.fillStyle = css(theme.ink, 0.85);
    context.fillRect(toX(axis.coordinate(page.moment)) - 0.75, 0, 1.5, height);
  }

  coordinate(event) {
    const { axis } = this.page;
    const box = this.box.getBoundingClientRect();
    const share = (event.clientX - box.left - MARGIN.left) / (box.width - MARGIN.left - MARGIN.right);
    return axis.begin + clamp(share, 0, 1) * (axis.end - axis.begin);
  }

  listen() {
    const { box, page } = this;
    box.addEventListener("pointerdown", (event) => {
      box.setPointerCapture(event.pointerId);
      const at = this.coordinate(event);
      const { x0, x1 } = page.view;
      const isWhole = x1 - x0 > 0.98 * (page.axis.end - page.axis.begin);
      this.grip = { at, x0, x1, moves: at >= x0 && at <= x1 && !isWhole };
    });
    box.addEventListener("pointermove", (event) => {
      if (!this.grip) return;
      const { at, x0, x1, moves } = this.grip;
      const now = this.coordinate(event);
      if (moves) page.setTime(x0 + now - at, x1 + now - at);
      else if (Math.abs(now - at) > (page.axis.end - page.axis.begin) / 200) page.setTime(Math.min(at, now), Math.max(at, now));
    });
    box.addEventListener("pointerup", () => { this.grip = null; });
    box.addEventListener("pointercancel", () => { this.grip = null; });
    box.addEventListener("dblclick", () => page.showAll());
  }
}
