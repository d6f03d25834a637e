// The map of the segments at one moment. All reserved memory is laid out like text: byte after byte from left to right,
// line after line, pool after pool, with a gap between segments. A pixel has the same number of bytes at all moments, so
// that segments visibly appear and disappear while the moment moves.

const LINE_GAP = 3;
const SEGMENT_GAP = 3;

class SegmentMap {
  constructor(page) {
    this.page = page;
    this.box = byId("segments");
    this.canvas = this.box.querySelector("canvas");
    this.listen();
  }

  /** The segments that exist at the moment, by pool, stream and address. */
  present() {
    const { device, profile, moment } = this.page;
    const { start, end, pool, stream, address, count } = device.segments;
    const present = [];
    for (let segment = 0; segment < count; segment += 1) {
      if (start[segment] > moment) break;
      if (end[segment] > moment && profile.segmentPasses[segment] === 1) present.push(segment);
    }
    return present.sort((a, b) => pool[a] - pool[b] || stream[a] - stream[b] || address[a] - address[b]);
  }

  /** The blocks that are live at the moment, by address. */
  live() {
    const { device, profile, moment } = this.page;
    const live = [];
    device.visitLive(moment, moment, (block) => profile.passes[block] === 1 && live.push(block));
    const { address } = device.blocks;
    return live.sort((a, b) => address[a] - address[b]);
  }

  /** The number of lines, their height, and how many bytes a pixel has, the same at all moments. */
  measure(width) {
    const { profile, device } = this.page;
    if (this.measured && this.measured.profile === profile && this.measured.width === width) return this.measured;
    const { start, end } = device.segments;
    const ones = { count: device.segments.count, start, end, size: new Uint8Array(device.segments.count).fill(1) };
    const counts = sumOver(device.never, ones, profile.segmentPasses);
    const most = counts[firstGreatest(counts)];
    const gap = most * (SEGMENT_GAP + 2) > width * 12 ? 1 : SEGMENT_GAP;
    const rows = Math.max(10, Math.ceil((most * (gap + 2) * 2) / width));
    const lineHeight = clamp(Math.floor(240 / rows), 7, 20);
    const bytesPerPixel = Math.max(1, profile.peakReserved) / Math.max(width, width * rows * 0.97 - most * (gap + 1));
    this.measured = { profile, width, gap, rows, lineHeight, bytesPerPixel };
    return this.measured;
  }

  draw() {
    const { page, box } = this;
    const width = Math.max(100, box.clientWidth);
    const { gap, rows, lineHeight, bytesPerPixel } = this.measure(width);
    const height = rows * (lineHeight + LINE_GAP);
    box.style.height = `${height}px`;
    const context = fitCanvas(this.canvas, width, height, devicePixelRatio || 1);
    const segments = this.present();
    const live = this.live();
    const { blocks } = page.device;
    const starts = Float64Array.from(live, (block) => blocks.address[block]);
    this.spots = [];
    let pixel = 0;
    let mapped = 0;
    let placed = 0;
    const { address, size } = page.device.segments;
    segments.forEach((segment, index) => {
      const before = segments[index - 1];
      // Ranges of one expandable segment are adjacent.
      const touches = index > 0 && address[before] + size[before] === address[segment];
      if (!touches) pixel = Math.ceil(pixel) + (index > 0 ? gap : 0);
      const length = Math.max(1, size[segment] / bytesPerPixel);
      this.bar(context, pixel, length, css(page.theme.free), 0);
      this.spots.push({ from: pixel, to: pixel + length, segment });
      const end = address[segment] + size[segment];
      for (let at = upperBound(starts, address[segment] - 1); at < live.length && starts[at] < end; at += 1) {
        this.block(context, live[at], pixel, segment, bytesPerPixel);
        mapped += 1;
        placed += blocks.place[live[at]];
      }
      pixel += length;
    });
    this.note(segments, placed, live.length - mapped);
  }

  /** Draws a block in its segment. */
  block(context, block, pixel, segment, bytesPerPixel) {
    const { page } = this;
    const { blocks, segments } = page.device;
    const offset = (blocks.address[block] - segments.address[segment]) / bytesPerPixel;
    const isKept = page.kept === block + 1;
    const isPending = blocks.freed[block] <= page.moment;
    const faded = page.lit !== null && page.lit[block] === 0;
    const colour = isKept ? page.theme.highlight : page.groups.colour(page.groups.of[block], page.theme);
    const shaded = mix(colour, block & 1 ? [0, 0, 0] : page.theme.ground, faded ? 0.75 : block & 1 ? 0.12 : 0);
    this.bar(context, pixel + offset, blocks.place[block] / bytesPerPixel, css(shaded, isPending ? 0.5 : 1), 0.35);
  }

  /** A bar that wraps from line to line. A bar narrower than `slit` leaves no slit to its neighbour. */
  bar(context, from, length, colour, slit) {
    const { width, lineHeight } = this.measured;
    context.fillStyle = colour;
    const end = from + Math.max(0.15, length > 3 * slit ? length - slit : length);
    for (let at = from; at < end; ) {
      const line = Math.floor(at / width);
      const stop = Math.min(end, (line + 1) * width);
      context.fillRect(at - line * width, line * (lineHeight + LINE_GAP), stop - at, lineHeight);
      at = stop > at ? stop : end;
    }
  }

  /** A description of reserved and free memory; `astray` is the number of live blocks that are in none of the segments. */
  note(segments, placed, astray) {
    const { size } = this.page.device.segments;
    const reserved = segments.reduce((sum, segment) => sum + size[segment], 0);
    const outside = astray > 0 ? `; ${countText(astray)} live ${astray === 1 ? "block is" : "blocks are"} in no known segment` : "";
    byId("segments-note").textContent =
      `${countText(segments.length)} at this moment, ${bytesText(reserved)}, of which ${bytesText(Math.max(0, reserved - placed))} free${outside}`;
  }

  /** The segment and block under the mouse: { segment, block } with the block plus one. */
  pick(event) {
    const { width, lineHeight, bytesPerPixel } = this.measured;
    const box = this.box.getBoundingClientRect();
    const line = Math.floor((event.clientY - box.top) / (lineHeight + LINE_GAP));
    const pixel = line * width + clamp(event.clientX - box.left, 0, width - 1);
    const spot = this.spots.find(({ from, to }) => pixel >= from && pixel < to);
    if (!spot) return null;
    const { blocks, segments } = this.page.device;
    const address = segments.address[spot.segment] + (pixel - spot.from) * bytesPerPixel;
    const found = this.live().find((block) => {
      const slack = Math.max(0, bytesPerPixel - blocks.place[block]);
      return address >= blocks.address[block] - slack / 2 && address < blocks.address[block] + blocks.place[block] + slack / 2;
    });
    return { segment: spot.segment, block: found === undefined ? NO_OWNER : found + 1 };
  }

  listen() {
    this.box.addEventListener("pointermove", (event) => {
      const { page } = this;
      const found = this.pick(event);
      if (!found) page.tip.hide();
      else if (found.block !== NO_OWNER) page.tip.show(event, page.describe(found.block - 1));
      else page.tip.show(event, this.describe(found.segment));
    });
    this.box.addEventListener("pointerleave", () => this.page.tip.hide());
    this.box.addEventListener("click", (event) => {
      const found = this.pick(event);
      this.page.keep(found ? found.block : NO_OWNER);
    });
  }

  describe(segment) {
    const { device, profile, moment } = this.page;
    const { address, size, stream, pool, isExpandable } = device.segments;
    let live = 0;
    device.visitLive(moment, moment, (block) => {
      const at = device.blocks.address[block];
      if (profile.passes[block] === 1 && at >= address[segment] && at < address[segment] + size[segment]) live += device.blocks.place[block];
    });
    return [
      `free, in ${isExpandable[segment] ? "an expandable segment's range" : "a segment"} of ${bytesText(size[segment])}`,
      `${bytesText(size[segment] - live)} of it free (${shareText(1 - live / size[segment])})`,
      `${device.streams[stream[segment]]}, ${device.pools[pool[segment]]}`,
      `0x${address[segment].toString(16)}`,
    ];
  }
}
