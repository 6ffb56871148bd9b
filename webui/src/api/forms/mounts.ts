/** Returns the fields of a Creation Config Object for mounts; paths and permissions of mounts that are gone are left out. */
export function mountConfigOf({
  mounts,
  paths,
  readOnly,
}: {
  mounts: readonly string[];
  paths: Readonly<Record<string, string>>;
  readOnly: readonly string[];
}) {
  const places = Object.entries(paths).filter(([mount, path]) => path.trim() !== '' && mounts.includes(mount));
  const fixed = readOnly.filter((mount) => mounts.includes(mount));
  return {
    ...(mounts.length > 0 && { mounts: [...mounts] }),
    ...(places.length > 0 && { mount_map: Object.fromEntries(places) }),
    ...(fixed.length > 0 && {
      mount_options: Object.fromEntries(fixed.map((mount) => [mount, { permission: 'ro' as const }])),
    }),
  };
}
