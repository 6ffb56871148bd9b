import { useQuery } from '@tanstack/react-query';
import { graphql, query } from '../../api/graphql';

export const imagesQuery = graphql(`
  query {
    images(is_operation: false) {
      id name humanized_name tag registry architecture digest size_bytes aliases installed supported_accelerators
      resource_limits { key min max }
    }
  }
`);

export function useImages() {
  return useQuery({
    queryKey: ['images'],
    queryFn: async ({ signal }) =>
      ((await query(imagesQuery, {}, { signal })).images ?? []).filter((image) => image !== null),
    staleTime: 60_000,
  });
}
