export interface ImageName {
  name?: string | null;
  tag?: string | null;
  registry?: string | null;
  humanized_name?: string | null;
  aliases?: readonly (string | null)[] | null;
}

/** Returns the name by which a session requests an image. */
export function referenceOf(image: ImageName): string {
  const name =
    image.registry && !image.name?.startsWith(`${image.registry}/`)
      ? `${image.registry}/${image.name}`
      : (image.name ?? '');
  return image.tag ? `${name}:${image.tag}` : name;
}

/** Returns true if each word of a text is a part of a name of the image. */
export function matches(image: ImageName, text: string): boolean {
  const names = [referenceOf(image), image.humanized_name ?? '', ...(image.aliases ?? [])].join(' ').toLowerCase();
  return text
    .toLowerCase()
    .split(/\s+/)
    .every((word) => names.includes(word));
}
