// Groups of blocks: by the line of code that allocated them, by size, by category, and so on. A group has the same
// colour in all pictures; the groups with the most bytes at the peak get the distinct colours.

const GROUPINGS = [
  ["cause", "line of code"],
  ["stack", "whole stack"],
  ["category", "category"],
  ["size", "size"],
  ["stream", "stream"],
  ["pool", "pool"],
];

/** Hues that can be distinguished on light and on dark background, even by most people with colour blindness. */
const HUES = [
  [64, 132, 244], [240, 128, 48], [26, 172, 134], [222, 72, 118], [150, 104, 236],
  [212, 164, 20], [40, 170, 206], [168, 104, 60], [116, 168, 48], [202, 92, 190],
];

/** The groups of a device with one kind of grouping. */
class Groups {
  constructor(device, stacks, categories, kind) {
    this.device = device;
    this.stacks = stacks;
    this.categories = categories;
    this.kind = kind;
    const { blocks } = device;
    /** The group of each block. */
    this.of = new Uint32Array(blocks.count);
    /** The key of each group: the number of a frame, a stack, a category, …, or a size. */
    this.keys = [];
    const found = new Map();
    const key = this.keyFunction(blocks);
    for (let block = 0; block < blocks.count; block += 1) {
      const value = key(block);
      let group = found.get(value);
      if (group === undefined) {
        group = this.keys.length;
        found.set(value, group);
        this.keys.push(value);
      }
      this.of[block] = group;
    }
    this.hue = new Int32Array(this.keys.length).fill(-1);
  }

  keyFunction(blocks) {
    switch (this.kind) {
      case "cause": {
        const causes = this.stacks.frames.map((_, stack) => this.stacks.cause(stack));
        return (block) => (blocks.stack[block] === 0 ? -1 : causes[blocks.stack[block] - 1]);
      }
      case "stack":
        return (block) => blocks.stack[block] - 1;
      case "size":
        return (block) => blocks.size[block];
      default: {
        const column = blocks[this.kind];
        return (block) => column[block];
      }
    }
  }

  /** The name of a group. */
  name(group) {
    const key = this.keys[group];
    switch (this.kind) {
      case "cause":
        return key < 0 ? "no stack recorded" : this.stacks.frameText(key);
      case "stack": {
        if (key < 0) return "no stack recorded";
        const cause = this.stacks.cause(key);
        return cause < 0 ? "empty stack" : `${this.stacks.frameText(cause)} (stack ${key})`;
      }
      case "size":
        return bytesText(key);
      case "category":
        return this.categories[key];
      case "stream":
        return this.device.streams[key];
      default:
        return this.device.pools[key];
    }
  }

  /** The memory of each group at a position, the most bytes first: { group, bytes, count }. */
  at(position, passes) {
    const bytes = new Float64Array(this.keys.length);
    const counts = new Uint32Array(this.keys.length);
    const { size } = this.device.blocks;
    this.device.visitLive(position, position, (block) => {
      if (passes[block] === 0) return;
      bytes[this.of[block]] += size[block];
      counts[this.of[block]] += 1;
    });
    const present = [];
    for (let group = 0; group < counts.length; group += 1) {
      if (counts[group] > 0) present.push({ group, bytes: bytes[group], count: counts[group] });
    }
    return present.sort((a, b) => b.bytes - a.bytes || a.group - b.group);
  }

  /** Assigns the distinct hues to the groups that have the most bytes at a position. */
  assignHues(position, passes) {
    this.hue.fill(-1);
    this.at(position, passes).slice(0, HUES.length * 3).forEach(({ group }, rank) => {
      this.hue[group] = rank;
    });
  }

  /** The colour of a group as red, green, blue. */
  colour(group, theme) {
    const rank = this.hue[group];
    // The second ten are paler, the third still more.
    return rank < 0 ? theme.other : mix(HUES[rank % HUES.length], theme.other, Math.floor(rank / HUES.length) * 0.4);
  }

  /** The colour of each block as the bytes of a picture; blocks that are not `lit` are faded. */
  blockColours(theme, lit) {
    const { count } = this.device.blocks;
    const colours = new Uint32Array(count);
    const shades = Uint32Array.from({ length: this.keys.length * 4 }, (_, index) => {
      const colour = this.colour(index >> 2, theme);
      // Neighbours differ a little, so that the boundaries of blocks are visible.
      const shaded = index & 1 ? mix(colour, [0, 0, 0], 0.1) : colour;
      return packed(index & 2 ? mix(shaded, theme.ground, 0.82) : shaded);
    });
    for (let block = 0; block < count; block += 1) {
      const faded = lit !== null && lit[block] === 0 ? 2 : 0;
      colours[block] = shades[this.of[block] * 4 + faded + (block & 1)];
    }
    return colours;
  }
}

function mix(colour, other, share) {
  return colour.map((value, index) => Math.round(value * (1 - share) + other[index] * share));
}

/** Red, green, blue in the memory layout of a canvas. */
function packed([red, green, blue]) {
  return ((255 << 24) | (blue << 16) | (green << 8) | red) >>> 0;
}

function css([red, green, blue], alpha = 1) {
  return `rgba(${red},${green},${blue},${alpha})`;
}
