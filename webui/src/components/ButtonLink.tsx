import { Button } from '@mantine/core';
import { createLink } from '@tanstack/react-router';

/** A link to another page of the console that looks like a button. */
export const ButtonLink = createLink(Button<'a'>);
