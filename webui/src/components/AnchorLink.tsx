import { Anchor } from '@mantine/core';
import { createLink } from '@tanstack/react-router';

/** A link to a page of the console, with its typed path and search. */
export const AnchorLink = createLink(Anchor<'a'>);
