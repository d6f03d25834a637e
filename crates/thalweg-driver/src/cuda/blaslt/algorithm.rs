//! Algorithms of cuBLASLt as numbers: the configurations of the algorithms that its heuristic proposes, and the algorithm
//! for a configuration.

use std::ffi::c_int;

use super::{Algorithm, Api, BlasLt, HeuristicResult, Key, Problem};
use crate::cuda::table::numbers;
use crate::library::{MatmulAlgorithm, MatmulCall};
use crate::{Code, Error, Result};

numbers! { attributes_of_algorithms from cudarc::cublaslt::sys::cublasLtMatmulAlgoConfigAttributes_t, pub(in crate::cuda) u32 {
    CONFIG_ID = 0, CUBLASLT_ALGO_CONFIG_ID;
    CONFIG_TILE = 1, CUBLASLT_ALGO_CONFIG_TILE_ID;
    CONFIG_SPLIT_K = 2, CUBLASLT_ALGO_CONFIG_SPLITK_NUM;
    CONFIG_REDUCTION = 3, CUBLASLT_ALGO_CONFIG_REDUCTION_SCHEME;
    CONFIG_SWIZZLE = 4, CUBLASLT_ALGO_CONFIG_CTA_SWIZZLING;
    CONFIG_CUSTOM = 5, CUBLASLT_ALGO_CONFIG_CUSTOM_OPTION;
    CONFIG_STAGES = 6, CUBLASLT_ALGO_CONFIG_STAGES_ID;
    CONFIG_INNER_SHAPE = 7, CUBLASLT_ALGO_CONFIG_INNER_SHAPE_ID;
    CONFIG_CLUSTER_SHAPE = 8, CUBLASLT_ALGO_CONFIG_CLUSTER_SHAPE_ID;
} }

impl BlasLt {
    /// Returns the algorithms that the library proposes for a product, best guess first, without duplicates. The device's
    /// context is current.
    pub(in crate::cuda) fn algorithms(
        &self,
        device: u32,
        call: &MatmulCall,
        most: u32,
    ) -> Result<Vec<MatmulAlgorithm>> {
        let key = Key::new(device, &MatmulCall { algorithm: None, ..*call })
            .map_err(|why| Error::new(Code::InvalidValue, "cublasLtMatmulAlgoGetHeuristic", why))?;
        let problem = self.problem(&key, &call.epilogue)?;
        let mut algorithms: Vec<MatmulAlgorithm> = Vec::new();
        for result in self.heuristic(&key, &problem, most)? {
            let algorithm = self.api.configuration(&result.algorithm)?;
            if !algorithms.contains(&algorithm) {
                algorithms.push(algorithm);
            }
        }
        Ok(algorithms)
    }

    /// Returns the algorithm of a configuration, if the library has it for the product and the workspace suffices.
    pub(in crate::cuda) fn configured(
        &self,
        key: &Key,
        problem: &Problem,
        wanted: MatmulAlgorithm,
    ) -> Result<Algorithm> {
        let (handle, table) = (self.handle(key.device)?, &self.api.table);
        let (format, compute, scale) = (key.format.0, key.compute.0, key.scale().0);
        let unsupported = |why: &str| {
            let detail =
                format!("{wanted:?}: {why}; tune the product again, or leave the choice to the library");
            Error::new(Code::NotSupported, "cublasLtMatmulAlgoCheck", detail)
        };
        let mut algorithm = Algorithm::default();
        // SAFETY: writes one algorithm.
        let made = unsafe {
            let target = &raw mut algorithm;
            table.algorithm_init(handle, compute, scale, format, format, format, format, wanted.id, target)
        };
        if !made.is_success() {
            return Err(unsupported("the library has no such algorithm for these formats"));
        }
        self.api.configure(&mut algorithm, &wanted).map_err(|error| unsupported(&error.to_string()))?;
        self.check(key, problem, &algorithm).map_err(|why| unsupported(&why))?;
        Ok(algorithm)
    }

    /// Checks that the library has an algorithm for a product, and that the workspace suffices. The error is the reason.
    pub(in crate::cuda) fn check(
        &self,
        key: &Key,
        problem: &Problem,
        algorithm: &Algorithm,
    ) -> Result<(), String> {
        let handle = self.handle(key.device).map_err(|error| error.to_string())?;
        let mut result = HeuristicResult::default();
        let Problem { descriptor, a, b, d } = problem;
        // SAFETY: all objects are alive, and one result is written.
        let checked = unsafe {
            let (table, result) = (&self.api.table, &raw mut result);
            table.algorithm_check(handle, descriptor.raw, a.raw, b.raw, d.raw, d.raw, algorithm, result)
        };
        if !checked.is_success() || result.status != 0 {
            return Err("the library does not run it for this product on this device".to_owned());
        }
        match result.workspace_bytes as u64 {
            needs if needs > key.workspace_bytes => {
                let has = key.workspace_bytes;
                Err(format!("it needs a workspace of {needs} bytes and is given {has}"))
            }
            _ => Ok(()),
        }
    }
}

impl Api {
    /// Returns the configuration of an algorithm.
    fn configuration(&self, algorithm: &Algorithm) -> Result<MatmulAlgorithm> {
        let read = |attribute: u32, bytes: usize| {
            let (mut value, mut written) = (0_u32, 0_usize);
            // SAFETY: at most `bytes` of the four are written, and the count.
            let outcome = unsafe {
                let (value, written) = ((&raw mut value).cast(), &raw mut written);
                self.table.algorithm_get(algorithm, attribute, value, bytes, written)
            };
            self.check(outcome, || format!("attribute {attribute} of an algorithm")).map(|()| value)
        };
        Ok(MatmulAlgorithm {
            id: read(CONFIG_ID, 4)? as c_int,
            tile: read(CONFIG_TILE, 4)?,
            stages: read(CONFIG_STAGES, 4)?,
            split_k: read(CONFIG_SPLIT_K, 4)? as c_int,
            reduction: read(CONFIG_REDUCTION, 4)?,
            swizzle: read(CONFIG_SWIZZLE, 4)?,
            custom: read(CONFIG_CUSTOM, 4)?,
            inner_shape: read(CONFIG_INNER_SHAPE, 2)? as u16,
            cluster_shape: read(CONFIG_CLUSTER_SHAPE, 2)? as u16,
        })
    }

    /// Applies a configuration to an algorithm.
    fn configure(&self, algorithm: &mut Algorithm, wanted: &MatmulAlgorithm) -> Result<()> {
        let attributes = [
            (CONFIG_TILE, wanted.tile, 4),
            (CONFIG_STAGES, wanted.stages, 4),
            (CONFIG_SPLIT_K, wanted.split_k as u32, 4),
            (CONFIG_REDUCTION, wanted.reduction, 4),
            (CONFIG_SWIZZLE, wanted.swizzle, 4),
            (CONFIG_CUSTOM, wanted.custom, 4),
            (CONFIG_INNER_SHAPE, u32::from(wanted.inner_shape), 2),
            (CONFIG_CLUSTER_SHAPE, u32::from(wanted.cluster_shape), 2),
        ];
        for (attribute, value, bytes) in attributes {
            // SAFETY: `bytes` of the value are read at once; both bytes of a short number come first on a little-endian host.
            let outcome =
                unsafe { self.table.algorithm_set(algorithm, attribute, (&raw const value).cast(), bytes) };
            self.check(outcome, || format!("attribute {attribute} of an algorithm"))?;
        }
        Ok(())
    }
}
