/** What the name of a mount begins with if it is an artifact instead of a folder. */
export const scheme = 'artifact:';

/** Returns where a mount is seen if a request does not say it. */
export const homeOf = (mount: string): string => `/home/work/${mount.startsWith(scheme) ? '' : mount}`;
