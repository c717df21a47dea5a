// A picture from the camera; where the browser gives pages none (no HTTPS), from its own camera dialog.

export function useCamera(button, take) {
  const dialog = document.getElementById("camera-dialog"), video = document.getElementById("video");
  const file = document.getElementById("camera-file");
  file.addEventListener("change", () => { take([...file.files]); file.value = ""; });

  button.addEventListener("click", async () => {
    if (!navigator.mediaDevices?.getUserMedia) return file.click();
    try {
      video.srcObject = await navigator.mediaDevices.getUserMedia({ video: { facingMode: "environment" } });
    } catch {
      return file.click();
    }
    dialog.showModal();
    await video.play();
  });
  document.getElementById("camera-close").addEventListener("click", () => dialog.close());
  dialog.addEventListener("close", () => {
    video.srcObject?.getTracks().forEach((track) => track.stop());
    video.srcObject = null;
  });
  document.getElementById("shoot").addEventListener("click", () => {
    if (!video.videoWidth) return;  // no picture yet
    const canvas = document.createElement("canvas");
    canvas.width = video.videoWidth;
    canvas.height = video.videoHeight;
    canvas.getContext("2d").drawImage(video, 0, 0);
    canvas.toBlob((blob) => take([new File([blob], "camera.jpg", { type: "image/jpeg" })]), "image/jpeg", 0.95);
    dialog.close();
  });
}
