import { MantineProvider } from '@mantine/core';
import { QueryClientProvider } from '@tanstack/react-query';
import { createMemoryHistory, RouterProvider } from '@tanstack/react-router';
import { render } from '@testing-library/react';
import { makeQueryClient } from '../app/queries';
import { makeRouter } from '../app/router';
import { cssVariables, theme } from '../theme/theme';
import type { FakeServer } from './server';

/** Opens a path of the console against a server of the test; failures are told at once, without another try. */
export function openPage(path: string, server: FakeServer) {
  server.install();
  const client = makeQueryClient();
  client.setDefaultOptions({ queries: { ...client.getDefaultOptions().queries, retry: false } });
  const router = makeRouter(client, createMemoryHistory({ initialEntries: [path] }));
  const view = render(
    <MantineProvider theme={theme} cssVariablesResolver={cssVariables} env="test">
      <QueryClientProvider client={client}>
        <RouterProvider router={router} />
      </QueryClientProvider>
    </MantineProvider>,
  );
  return { ...view, client, router };
}
