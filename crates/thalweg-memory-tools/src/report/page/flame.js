// The flame graph: which code holds the memory at the moment, from the program's outermost line at the top to the innermost below.
// The width of a frame is the live memory below it; a click makes it as wide as the picture.

const FLAME_ROW = 19;
/** The width below which a frame is not drawn, in pixels. */
const FLAME_LEAST = 1.5;

class Flame {
  constructor(page) {
    this.page = page;
    this.box = byId("flame");
    this.canvas = this.box.querySelector("canvas");
    /** The frames from the outermost to the one that is as wide as the picture. */
    this.path = [];
    this.spots = [];
    /** The number of the frame that the keyboard has chosen. */
    this.chosen = -1;
    byId("flame-panel").addEventListener("toggle", () => this.draw());
    this.box.addEventListener("pointermove", (event) => this.point(event));
    this.box.addEventListener("pointerleave", () => page.tip.hide());
    this.box.addEventListener("click", (event) => this.choose(event));
    this.box.addEventListener("keydown", (event) => this.onKey(event));
    byId("flame-all").addEventListener("click", () => {
      this.path = [];
      this.draw();
    });
  }

  /** The tree of the live memory at the moment: { frame, bytes, children }, outermost frame first. */
  tree() {
    const { device, profile, moment, stacks } = this.page;
    const { blocks } = device;
    const byStack = new Map();
    device.visitLive(moment, moment, (block) => {
      if (profile.passes[block] === 0) return;
      byStack.set(blocks.stack[block], (byStack.get(blocks.stack[block]) ?? 0) + blocks.size[block]);
    });
    const root = { frame: -1, bytes: 0, children: new Map() };
    for (const [stack, bytes] of byStack) {
      root.bytes += bytes;
      let node = root;
      const frames = stack === 0 ? [] : stacks.frames[stack - 1];
      for (let at = frames.length - 1; at >= 0; at -= 1) {
        let child = node.children.get(frames[at]);
        if (!child) {
          child = { frame: frames[at], bytes: 0, children: new Map() };
          node.children.set(frames[at], child);
        }
        child.bytes += bytes;
        node = child;
      }
    }
    return root;
  }

  name(node) {
    return node.frame < 0 ? "all that is live" : this.page.stacks.frameText(node.frame);
  }

  draw() {
    if (!byId("flame-panel").open || !this.page.profile) return;
    const root = this.tree();
    this.spots = [];
    let top = root;
    const above = [root];
    for (const frame of this.path) {
      const next = top.children.get(frame);
      if (!next) break;
      above.push(next);
      top = next;
    }
    this.path.length = above.length - 1;
    byId("flame-all").hidden = above.length === 1;
    const width = this.box.clientWidth;
    above.forEach((node, depth) => this.spots.push({ node, x: 0, width, depth, path: this.path.slice(0, depth) }));
    this.place(top, 0, width, above.length, this.path);
    const depth = this.spots.reduce((most, spot) => Math.max(most, spot.depth), 0) + 1;
    this.total = root.bytes;
    this.paint(width, depth * FLAME_ROW);
  }

  /** Draws the children of a frame below it, the widest first. */
  place(node, x, width, depth, path) {
    if (node.bytes === 0) return;
    const children = [...node.children.values()].sort((a, b) => b.bytes - a.bytes || a.frame - b.frame);
    let at = x;
    for (const child of children) {
      const wide = (width * child.bytes) / node.bytes;
      if (wide < FLAME_LEAST) break;
      const own = [...path, child.frame];
      this.spots.push({ node: child, x: at, width: wide, depth, path: own });
      this.place(child, at, wide, depth + 1, own);
      at += wide;
    }
  }

  paint(width, height) {
    const { theme } = this.page;
    const scale = devicePixelRatio || 1;
    this.box.style.height = `${height}px`;
    this.canvas.width = Math.round(width * scale);
    this.canvas.height = Math.round(height * scale);
    const pen = this.canvas.getContext("2d");
    pen.scale(scale, scale);
    pen.font = "12px system-ui, sans-serif";
    pen.textBaseline = "middle";
    for (const [number, { node, x, width: wide, depth }] of this.spots.entries()) {
      const top = depth * FLAME_ROW;
      pen.fillStyle = css(this.colour(node), 1);
      pen.fillRect(x, top, Math.max(1, wide - 1), FLAME_ROW - 1);
      if (number === this.chosen) {
        pen.strokeStyle = css(theme.ink);
        pen.strokeRect(x + 1, top + 1, Math.max(1, wide - 3), FLAME_ROW - 3);
      }
      if (wide < 28) continue;
      pen.fillStyle = css(theme.ink);
      pen.save();
      pen.beginPath();
      pen.rect(x, top, wide - 3, FLAME_ROW);
      pen.clip();
      pen.fillText(shortFrame(this.name(node)), x + 4, top + FLAME_ROW / 2);
      pen.restore();
    }
  }

  /** The telling lines are highlighted against those of libraries. */
  colour(node) {
    const { theme, stacks } = this.page;
    if (node.frame < 0) return theme.free;
    const hue = HUES[node.frame % HUES.length];
    return mix(hue, theme.ground, stacks.tells[node.frame] === 1 ? 0.45 : 0.75);
  }

  /** Moves the chosen frame by the arrows, and looks closer at it. */
  onKey(event) {
    const { spots } = this;
    const now = spots[this.chosen] ?? spots[0];
    if (!now) return;
    const beside = spots.filter((spot) => spot.depth === now.depth);
    const middle = now.x + now.width / 2;
    const above = (spot) => spot.depth === now.depth - 1 && middle >= spot.x && middle < spot.x + spot.width;
    const below = (spot) => spot.depth === now.depth + 1 && spot.x >= now.x && spot.x < now.x + now.width;
    const targets = {
      ArrowLeft: () => beside[beside.indexOf(now) - 1],
      ArrowRight: () => beside[beside.indexOf(now) + 1],
      ArrowUp: () => spots.find(above),
      ArrowDown: () => spots.find(below),
      Enter: () => now,
    };
    if (!targets[event.key]) return;
    event.preventDefault();
    const next = targets[event.key]() ?? now;
    if (event.key === "Enter") {
      this.path = next.path;
      this.draw();
    }
    this.chosen = Math.max(0, this.spots.findIndex((spot) => spot.node.frame === next.node.frame && spot.depth === next.depth
      && (event.key === "Enter" || spot.x === next.x)));
    this.draw();
    const chosen = this.spots[this.chosen];
    const share = this.total > 0 ? chosen.node.bytes / this.total : 0;
    byId("flame-note").textContent = `${this.name(chosen.node)}: ${bytesText(chosen.node.bytes)}, ${shareText(share)}`;
  }

  spotAt(event) {
    const { left, top } = this.box.getBoundingClientRect();
    const [x, row] = [event.clientX - left, Math.floor((event.clientY - top) / FLAME_ROW)];
    return this.spots.find((spot) => spot.depth === row && x >= spot.x && x < spot.x + spot.width);
  }

  point(event) {
    const spot = this.spotAt(event);
    if (!spot) return this.page.tip.hide();
    const share = this.total > 0 ? spot.node.bytes / this.total : 0;
    return this.page.tip.show(event, [
      `${bytesText(spot.node.bytes)}  ${shareText(share)}`, this.name(spot.node), "click to look closer",
    ]);
  }

  choose(event) {
    const spot = this.spotAt(event);
    if (!spot) return;
    this.path = spot.path;
    this.draw();
  }
}
