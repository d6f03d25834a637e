// Paints the stack of live blocks: each block on top of those that were allocated before it.
//
// It does not draw shapes. For every column of pixels one position is chosen, that of the most live bytes in the column's
// time, so that no peak is hidden between two pixels. Then the blocks are taken in order of allocation and stacked,
// column by column, into a buffer that contains for every pixel the block that owns it. The buffer is coloured in
// one pass, and it determines which block is under the mouse. The cost is the number of blocks in view, plus columns
// times live blocks, whatever the number of events.

const NO_OWNER = 0;

/** Blocks lower than this many pixels are painted together with neighbours that live in the same columns. */
const TINY = 0.4;

class Painter {
  constructor() {
    this.width = 0;
    this.height = 0;
  }

  /** Allocates a picture of this size in pixels. */
  resize(width, height) {
    if (width === this.width && height === this.height) return;
    this.width = width;
    this.height = height;
    /** The block that owns each pixel, plus one, row by row from the top; negative while it is pending. */
    this.owners = new Int32Array(width * height);
    this.samples = new Int32Array(width);
    this.floor = new Float64Array(width);
    this.image = new ImageData(width, height);
    this.pixels = new Uint32Array(this.image.data.buffer);
  }

  /** Finds which block owns which pixel. `view` has x0, x1 in coordinates of the axis and y0, y1 in bytes. */
  layOut(profile, axis, view) {
    this.owners.fill(NO_OWNER);
    this.chooseSamples(profile.livePyramid, axis, view);
    this.indexColumns();
    const { width, samples } = this;
    const scale = this.height / (view.y1 - view.y0);
    this.floor.fill(-view.y0 * scale);
    const visible = this.collect(profile, samples[0], samples[width - 1]);
    const { size } = profile.device.blocks;
    const { blocks, from, to, pending } = this.visible;
    for (let index = 0; index < visible; ) {
      let owner = blocks[index];
      let height = size[owner] * scale;
      const first = index;
      let highest = height;
      index += 1;
      while (highest < TINY && height < TINY && index < visible && from[index] === from[first]
          && to[index] === to[first] && pending[index] === pending[first]) {
        const more = size[blocks[index]] * scale;
        if (more >= TINY) break;
        if (more > highest) [highest, owner] = [more, blocks[index]];
        height += more;
        index += 1;
      }
      this.put(from[first], to[first], pending[first], height, owner + 1);
    }
  }

  /** Fills `visible` with the blocks that are live in some column, in order of allocation; returns their number. */
  collect(profile, first, last) {
    const { count, start, freed, end, latestEnd } = profile.device.blocks;
    const { passes } = profile;
    const { samples, width } = this;
    if (!this.visible || this.visible.blocks.length < count) {
      const [blocks, from, to, pending] = Array.from({ length: 4 }, () => new Int32Array(count));
      this.visible = { blocks, from, to, pending };
    }
    const { blocks, from, to, pending } = this.visible;
    let visible = 0;
    for (let chunk = 0; chunk < latestEnd.length && start[chunk * CHUNK] <= last; chunk += 1) {
      if (latestEnd[chunk] <= first) continue;
      const stop = Math.min(count, (chunk + 1) * CHUNK);
      for (let block = chunk * CHUNK; block < stop; block += 1) {
        if (passes[block] === 0 || end[block] <= first || start[block] > last) continue;
        const column = this.columnOf(start[block]);
        // Most blocks die before the next column.
        if (column === width || samples[column] >= end[block]) continue;
        blocks[visible] = block;
        from[visible] = column;
        to[visible] = this.columnOf(end[block]);
        pending[visible] = this.columnOf(freed[block]);
        visible += 1;
      }
    }
    return visible;
  }

  /** The position to show in each column. Ascending. */
  chooseSamples(pyramid, axis, view) {
    const step = (view.x1 - view.x0) / this.width;
    let low = axis.positionAt(view.x0);
    for (let column = 0; column < this.width; column += 1) {
      const next = axis.positionAt(view.x0 + (column + 1) * step);
      this.samples[column] = next > low + 1 ? pyramid.greatest(low, next) : low;
      low = next;
    }
  }

  /** Prepares `columnOf`. */
  indexColumns() {
    const { samples, width } = this;
    this.first = samples[0];
    const span = samples[width - 1] - this.first + 1;
    if (!this.columns || this.columns.length < span) this.columns = new Uint16Array(Math.ceil(span * 1.5));
    this.span = span;
    let from = 0;
    for (let column = 0; column < width; column += 1) {
      const to = samples[column] - this.first + 1;
      if (to > from) {
        this.columns.fill(column, from, to);
        from = to;
      }
    }
  }

  /** The first column that shows this position or a later one; `width` if there is none. */
  columnOf(position) {
    const offset = position - this.first;
    return offset <= 0 ? 0 : offset >= this.span ? this.width : this.columns[offset];
  }

  /** Puts a block (or a run of tiny ones) on top of the blocks in its columns. */
  put(from, to, pending, height, owner) {
    const { floor, owners, width } = this;
    const rows = this.height;
    for (let column = from; column < to; column += 1) {
      const bottom = floor[column];
      const top = bottom + height;
      floor[column] = top;
      if (bottom >= rows || top <= 0) continue;
      // A row belongs to the block that covers its middle.
      const low = bottom <= 0 ? 0 : Math.ceil(bottom - 0.5);
      const high = top >= rows ? rows : Math.ceil(top - 0.5);
      const drawn = column >= pending ? -owner : owner;
      let at = (rows - 1 - low) * width + column;
      for (let row = low; row < high; row += 1) {
        owners[at] = drawn;
        at -= width;
      }
    }
  }

  /** Colours the picture; the block `highlighted` (plus one) is brighter. */
  colour(colours, theme, highlighted) {
    const { owners, pixels, width } = this;
    const three = 3 * width;
    const bright = highlighted === NO_OWNER ? 0 : packed(theme.highlight);
    const ground = packed(theme.ground) & 0xfefefe;
    for (let at = 0; at < owners.length; at += 1) {
      const owner = owners[at];
      if (owner === NO_OWNER) {
        pixels[at] = 0;
        continue;
      }
      const block = owner < 0 ? -owner : owner;
      let colour = block === highlighted ? bright : colours[block - 1];
      if (owner < 0) {
        // Half the background: pending, freed by its owner but not yet free.
        colour = 0xff000000 | (((colour & 0xfefefe) >>> 1) + (ground >>> 1));
      } else if (owners[at - width] !== owner && owners[at + three] === owner) {
        // The upper edge of a block that is high enough to have one.
        colour = 0xff000000 | (((colour & 0xfcfcfc) >>> 2) * 3);
      }
      pixels[at] = colour;
    }
    return this.image;
  }

  /** The block at a pixel, plus one; 0 if there is none. */
  ownerAt(column, row) {
    if (column < 0 || row < 0 || column >= this.width || row >= this.height) return NO_OWNER;
    return Math.abs(this.owners[row * this.width + column]);
  }
}
