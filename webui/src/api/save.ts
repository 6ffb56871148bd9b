/** How long a browser may take to begin reading what it is given, in ms. */
const readTimeout = 60_000;

/** Gives the person a file of the browser under a name. */
export function saveBlob(content: Blob, name: string): void {
  const url = URL.createObjectURL(content);
  const link = document.createElement('a');
  link.href = url;
  link.download = name;
  link.click();
  // A download begins after the click: a URL that is revoked at once sometimes saves nothing.
  setTimeout(() => URL.revokeObjectURL(url), readTimeout);
}
