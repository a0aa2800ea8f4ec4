// The user's own example: a picture decoded on a canvas, a text, or numbers separated by commas.

const decoder = document.createElement("canvas");

function readPixels(width, height, paint) {
  decoder.width = width;
  decoder.height = height;
  const context = decoder.getContext("2d", { willReadFrequently: true });
  context.fillStyle = "#000";
  context.fillRect(0, 0, width, height);
  context.imageSmoothingQuality = "high";
  paint(context);
  const { data } = context.getImageData(0, 0, width, height);
  let rgb = "";
  for (let at = 0; at < data.length; at += 4) rgb += String.fromCharCode(data[at], data[at + 1], data[at + 2]);
  return { width, height, rgb: btoa(rgb) };
}

export async function decodePicture(file) {
  try {
    return await createImageBitmap(file);
  } catch {
    throw new Error(`This browser cannot read “${file.name}” as a picture: choose a PNG or JPEG file.`);
  }
}

export function fullPicture(bitmap) {
  return readPixels(bitmap.width, bitmap.height, (context) => context.drawImage(bitmap, 0, 0));
}

// The middle of the picture in the model's proportions, scaled to its size.
export function croppedPicture(bitmap, width, height) {
  const scale = Math.min(bitmap.width / width, bitmap.height / height);
  const [w, h] = [width * scale, height * scale];
  return readPixels(width, height, (context) => context.drawImage(bitmap, (bitmap.width - w) / 2, (bitmap.height - h) / 2, w, h, 0, 0, width, height));
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

export function saveFile(name, type, body) {
  const link = document.createElement("a");
  link.href = URL.createObjectURL(new Blob([body], { type }));
  link.download = name;
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 10000);
}
