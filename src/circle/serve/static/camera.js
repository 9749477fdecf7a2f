// The camera: frames as small JPEG images, square, the middle of the picture.

const SIDE = 224;

export class Camera {
  constructor(video) {
    this.video = video;
    this.stream = null;
  }

  get on() {
    return this.stream !== null;
  }

  async start() {
    if (!navigator.mediaDevices) throw new Error("The camera needs https, or this machine's own address (127.0.0.1).");
    this.stream = await navigator.mediaDevices.getUserMedia({ video: { width: 640, height: 480 } });
    this.video.srcObject = this.stream;
    await this.video.play();
  }

  stop() {
    for (const track of this.stream?.getTracks() ?? []) track.stop();
    this.stream = null;
    this.video.srcObject = null;
  }

  async frame() {
    const { videoWidth: width, videoHeight: height } = this.video;
    if (!width) return null;
    const side = Math.min(width, height);
    const canvas = new OffscreenCanvas(SIDE, SIDE);
    canvas.getContext("2d").drawImage(this.video, (width - side) / 2, (height - side) / 2, side, side, 0, 0, SIDE, SIDE);
    return canvas.convertToBlob({ type: "image/jpeg", quality: 0.9 });
  }
}
