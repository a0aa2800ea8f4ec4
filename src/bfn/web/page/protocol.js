// Messages come from a WebSocket of `bfn serve` or from a recording inside the page, in the same
// format: the length of the header (u32, little-endian), the header as JSON, the body.

const utf8 = new TextDecoder();

function readMessage(buffer) {
  const length = new DataView(buffer).getUint32(0, true);
  const header = JSON.parse(utf8.decode(new Uint8Array(buffer, 4, length)));
  return { header, body: buffer.slice(4 + length) };
}

// A recording: base64 of a deflated sequence of messages, each after its length (u32).
export async function readFilm(text, receive) {
  const packed = Uint8Array.from(atob(text.trim()), (letter) => letter.charCodeAt(0));
  const stream = new Blob([packed]).stream().pipeThrough(new DecompressionStream("deflate"));
  const bytes = await new Response(stream).arrayBuffer();
  const view = new DataView(bytes);
  for (let at = 0; at < bytes.byteLength; ) {
    const length = view.getUint32(at, true);
    const { header, body } = readMessage(bytes.slice(at + 4, at + 4 + length));
    receive(header, body);
    at += 4 + length;
  }
}

export class Live {
  constructor(receive, lost) {
    const address = new URL("live", location.href);
    address.protocol = location.protocol === "https:" ? "wss:" : "ws:";
    this.socket = new WebSocket(address);
    this.socket.binaryType = "arraybuffer";
    this.socket.onmessage = (event) => {
      const { header, body } = readMessage(event.data);
      receive(header, body);
    };
    this.socket.onclose = lost;
  }

  send(message) {
    if (this.socket.readyState === WebSocket.OPEN) this.socket.send(JSON.stringify(message));
  }
}
