// The user's own example: a picture decoded on a canvas, a text, or numbers separated by commas.

const decoder = document.createElement("canvas");

export async function decodePicture(file) {
  try {
    return await createImageBitmap(file);
  } catch {
    throw new Error(`This browser cannot read “${file.name}” as a picture: choose a PNG or JPEG file.`);
  }
}

// The levels of a picture for a group of pixels: its middle in their proportions, scaled to their size.
export function readPicture(bitmap, group) {
  const [channels, height, width] = group.shape;
  const scale = Math.min(bitmap.width / width, bitmap.height / height);
  const [w, h] = [width * scale, height * scale];
  decoder.width = width;
  decoder.height = height;
  const context = decoder.getContext("2d", { willReadFrequently: true });
  context.fillStyle = "#000"; // behind what is transparent
  context.fillRect(0, 0, width, height);
  context.imageSmoothingQuality = "high";
  context.drawImage(bitmap, (bitmap.width - w) / 2, (bitmap.height - h) / 2, w, h, 0, 0, width, height);
  const { data } = context.getImageData(0, 0, width, height);
  const levels = (shade) => Array.from({ length: width * height }, (_, i) => Math.round((shade(...data.subarray(4 * i, 4 * i + 3)) / 255) * (group.K - 1)));
  // Grey is the luma of ITU-R 601, as pillow makes pictures grey.
  if (channels === 1) return levels((r, g, b) => 0.299 * r + 0.587 * g + 0.114 * b);
  return [0, 1, 2].flatMap((c) => levels((...rgb) => rgb[c]));
}

// Numbers separated by commas, one for each variable.
export function readValues(text, model) {
  const words = text.trim().split(/[,;\n]/.test(text) ? /\s*[,;\n]\s*/ : /\s+/);
  if (words.length !== model.D) throw new Error(`This model's examples have ${model.D} values, but you gave ${words.length}: separate them with commas.`);
  return words.map((word, i) => {
    const group = model.groups.find((each) => i >= each.start && i < each.start + each.count);
    if (word === "" || Number.isNaN(Number(word))) {
      throw new Error(`“${word}” cannot be value ${i + 1}${group.name ? ` (${group.name})` : ""}: give a number.`);
    }
    return Number(word);
  });
}

export function saveFile(name, body) {
  const link = document.createElement("a");
  link.href = URL.createObjectURL(new Blob([body]));
  link.download = name;
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 10000);
}
